"""How long nothing is fired when the leading beat ends, dies or freezes.

::

    python -m tests.chaos.beat_failover --runs 30

Two beats on one machine and a schedule of 0.1 s. Each time is from the signal to the moment at which the first fire
of the other beat is seen in Redis. It exits with 1 if the p99 of any kind is above its bound: 0.5 s after
SIGTERM, 2 s after SIGKILL, the ttl and a second after SIGSTOP.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from redis import Redis

from celery_hardened.beat.names import Keys
from celery_hardened.embedded import EmbeddedValkey
from tests.fixtures.beats import BeatProcess
from tests.support.until import until

Kind = Literal["SIGTERM", "SIGKILL", "SIGSTOP"]

APP: Final = (Path(__file__).parents[1] / "support" / "beat_app.py").read_text()

_SCHEDULE: Final = "often"


def bound(kind: Kind, ttl: float) -> float:
    """Seconds, at the 99th percentile."""
    return {"SIGTERM": 0.5, "SIGKILL": 2.0, "SIGSTOP": ttl + 1.0}[kind]


class Pair:
    """Two beats on a Redis of their own."""

    def __init__(self, directory: Path, *, ttl: float) -> None:
        self._server = EmbeddedValkey(directory / "server")
        self._server.start()
        self.client = Redis.from_url(self._server.url)
        self.keys = Keys("pair")
        env = {
            "BROKER_URL": self._server.url,
            "RECORDS_URL": self._server.url,
            "RESULT_URL": self._server.url,
            "QUEUE": "pair",
            "KEY_PREFIX": "pair",
            "OUT": str(directory),
            "CONF": f"{{'hardened_beat_ttl': {ttl}}}",
            "SCHEDULES": f"{{'{_SCHEDULE}': {{'task': 'proj.tick', 'schedule': 0.1}}}}",
        }
        self.beats = [BeatProcess(name, directory / name, APP, scheduler="hardened", env=env) for name in ("b1", "b2")]

    def start(self) -> None:
        for beat in self.beats:
            beat.start()
            until(lambda: self._line() is not None, within=60, what="a beat to fire")
        self._stands_by(self.beats[1], 0)

    def fail_over(self, kind: Kind) -> float:
        """Harm the leader; seconds until the other one fires. Afterwards both are there again."""
        self.client.delete("pair")  # nobody consumes
        leader, other = self._leader(), self._other()
        line = self._line()
        assert line is not None
        term = line["term"]
        seen = len(leader.log())
        number = signal.Signals[kind]
        began = time.monotonic()
        os.kill(leader.pid, number)
        while (line := self._line()) is None or line["term"] == term:
            assert time.monotonic() - began < 60, f"nothing is fired a minute after {kind}"
            assert other.running, "the other beat ended"
            time.sleep(0.002)
        took = time.monotonic() - began
        if kind == "SIGSTOP":
            leader.resume()
        else:
            leader.wait(within=60)
            leader.start()
        self._stands_by(leader, seen)
        return took

    def _line(self) -> dict[str, float] | None:
        found = self.client.lindex(self.keys.history(_SCHEDULE), 0)
        return None if found is None else json.loads(found)

    def _leader(self) -> BeatProcess:
        identity = self.client.hget(self.keys.leader, "identity")
        assert identity is not None
        return next(beat for beat in self.beats if beat.pid == json.loads(identity)["pid"])

    def _other(self) -> BeatProcess:
        leader = self._leader()
        return next(beat for beat in self.beats if beat is not leader)

    def _stands_by(self, beat: BeatProcess, since: int) -> None:
        beat.wait_for_log("this beat stands by", within=60, since=since)

    def stop(self) -> None:
        for beat in self.beats:
            beat.kill_group()
        self._server.kill()


def percentile(times: Sequence[float], part: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.beat_failover")
    parser.add_argument("--runs", type=int, default=30, help="of each kind (default 30)")
    parser.add_argument("--ttl", type=float, default=5.0, help="hardened_beat_ttl, in seconds (default 5)")
    options = parser.parse_args(argv)
    kinds: tuple[Kind, ...] = ("SIGTERM", "SIGKILL", "SIGSTOP")
    times: dict[Kind, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="failover-") as directory:
        pair = Pair(Path(directory), ttl=options.ttl)
        try:
            pair.start()
            print(f"load at the start {os.getloadavg()}", flush=True)  # noqa: T201 - a command
            for _ in range(options.runs):
                for kind in kinds:
                    times[kind].append(pair.fail_over(kind))
        finally:
            pair.stop()
    good = True
    for kind in kinds:
        p50, p99, most = (percentile(times[kind], part) for part in (0.5, 0.99, 1.0))
        within = p99 <= bound(kind, options.ttl)
        good &= within
        verdict = "within" if within else "ABOVE"
        print(  # noqa: T201 - a command
            f"{kind}: {options.runs} runs, p50 {p50:.3f} s, p99 {p99:.3f} s, at most {most:.3f} s: "
            f"{verdict} {bound(kind, options.ttl):g} s"
        )
    print(f"ttl {options.ttl:g} s, {os.cpu_count()} cores, load at the end {os.getloadavg()}")  # noqa: T201 - a command
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
