"""``python -m gateway``: the provider's API, at ``$EXAMPLE_GATEWAY``.

=========================  =====================================================================
``POST /charges``          ``{"reference": …, "cents": …}`` and the header ``Idempotency-Key``
``GET /ledger?most=100``   how it behaves, totals, and the newest charges
``PUT /mode``              ``{"mode": …}``, one of `MODES`
=========================  =====================================================================
"""

import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import environment
from gateway.ledger import Ledger

#: Seconds that each way to behave keeps the shop waiting before it answers.
MODES = {
    "works": 0.2,
    "slow": 8.0,  # charges first, and answers late
    "times out": 60.0,  # charges first, and nobody hears of it
    "is down": 0.0,
    "declines": 0.0,
}


class Gateway(BaseHTTPRequestHandler):
    ledger: Ledger
    mode = "works"

    def do_POST(self) -> None:
        asked = self._body()
        mode = Gateway.mode
        if mode == "is down":
            self._answer(503, {"error": "down for maintenance"})
        elif mode == "declines":
            self._answer(402, {"error": "the card was declined"})
        else:
            # The money is taken before the answer is on its way: that is what makes charges hard.
            receipt = self.ledger.charge(self.headers["Idempotency-Key"], str(asked["reference"]), int(asked["cents"]))
            time.sleep(MODES[mode])
            self._answer(201, {"receipt": receipt})

    def do_GET(self) -> None:
        most = int(parse_qs(urlsplit(self.path).query).get("most", ["100"])[0])
        told = {"mode": Gateway.mode, "modes": list(MODES), **self.ledger.totals()}
        self._answer(200, {**told, "entries": self.ledger.entries(most)})

    def do_PUT(self) -> None:
        mode = self._body()["mode"]
        if mode not in MODES:
            self._answer(422, {"error": f"mode is one of {', '.join(MODES)}"})
            return
        Gateway.mode = mode
        self._answer(200, {"mode": mode})

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        except ConnectionError:
            pass  # whoever asked has given up, or was killed


if __name__ == "__main__":
    environment.FOLDER.mkdir(parents=True, exist_ok=True)
    Gateway.ledger = Ledger(environment.FOLDER / "gateway.sqlite3")
    address = urlsplit(environment.GATEWAY)
    host = os.environ.get("EXAMPLE_GATEWAY_BIND") or address.hostname or "127.0.0.1"
    with ThreadingHTTPServer((host, address.port or 80), Gateway) as server:
        server.daemon_threads = True
        server.serve_forever()
