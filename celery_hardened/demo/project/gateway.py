"""The payment gateway the shop depends on: it is down for the first two requests of every invoice.

Run as a program of its own. What it does goes to standard output, in the same
form as the shop's record: first the port it listens on, then each answer.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer

REFUSALS = 2

_requests: Counter[str] = Counter()


def note(event: str, **fields: object) -> None:
    """Write one line, at once."""
    sys.stdout.write(json.dumps({"at": time.time(), "event": event, **fields}) + "\n")
    sys.stdout.flush()


class Gateway(BaseHTTPRequestHandler):
    """503 while it is down for an invoice, then a receipt."""

    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        invoice = str(order["invoice"])
        _requests[invoice] += 1
        if _requests[invoice] <= REFUSALS:
            note("refused", invoice=invoice)
            self.send_response(503, "down")
            self.end_headers()
            return
        note("paid", invoice=invoice, cents=order["cents"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"receipt": f"receipt for {invoice}"}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing; `note` has said it."""


if __name__ == "__main__":
    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        note("listening", port=server.server_port)
        server.serve_forever()
