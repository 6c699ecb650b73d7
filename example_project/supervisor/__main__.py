"""``python -m supervisor``: run the example until Ctrl-C.

Exit codes: 0, it was asked to end; 2, it could not be set up.
"""

import argparse
import contextlib
import os
import selectors
import signal
import sys
from pathlib import Path

from celery_hardened.embedded import EmbeddedServerError
from supervisor import commands
from supervisor.place import PROJECT, Place, PlaceError
from supervisor.running import Running

_TRY = """
Try, with README.md of example_project beside it:
  place 20 orders                  {web}/
  break the gateway                {web}/gateway/
  see the dead letters             {web}/admin/celery_hardened/
  kill a worker                    kill -9 $(cat {folder}/pids/payments)
  or type here                     {help}
"""


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Asked:
    """How often somebody has asked it to end."""

    def __init__(self) -> None:
        self.times = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self.times += 1

    def to_end(self) -> bool:
        return self.times > 0

    def to_hurry(self) -> bool:
        return self.times > 1


class Typed:
    """Lines that somebody types, or pipes; at its end nobody is listened to any more."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._half = b""
        with contextlib.suppress(OSError, ValueError):  # a file, or none at all
            self._selector.register(sys.stdin, selectors.EVENT_READ)

    def lines(self, *, within: float) -> list[str]:
        """What has come within so many seconds."""
        if not self._selector.select(within):
            return []
        read = os.read(sys.stdin.fileno(), 4096)
        if not read:
            self._selector.unregister(sys.stdin)
            return []
        *whole, self._half = (self._half + read).split(b"\n")
        return [line.decode(errors="replace") for line in whole]


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev example", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="of the web pages; by default any that is free")
    parser.add_argument("--folder", type=Path, default=PROJECT / ".data", help="where all is kept")
    parser.add_argument("--until-ready", action="store_true", help="end as soon as everything answers: a trial")
    parser.add_argument("--fresh", action="store_true", help="forget what is kept there")
    options = parser.parse_args()
    asked = Asked()
    try:
        place = Place(options.folder, fresh=options.fresh)
    except PlaceError as problem:
        say(f"example: {problem}")
        return 2
    try:
        return run(place, asked, port=options.port, until_ready=options.until_ready)
    except (PlaceError, EmbeddedServerError) as problem:
        say(f"example: {problem}")
        return 2
    finally:
        place.close()


def run(place: Place, asked: Asked, *, port: int, until_ready: bool) -> int:
    running = Running(place.folder, place.open(), say=say, port=port)
    say(running.prepare())
    if place.valkey is not None:
        say(f"{'valkey':<10} pid {place.valkey.pid}")
    try:
        say(f"starting {', '.join(running.processes)}")
        running.start()
        if running.wait(asked.to_end):
            commands.tell(list(running.processes.values()), say)
            folder = os.path.relpath(place.folder, os.environ.get("EXAMPLE_SEEN_FROM") or Path.cwd())
            say(_TRY.format(web=running.web, folder=folder, help=commands.HELP))
            say(f"ready: {running.web}/")
        typed = Typed()
        while not (until_ready or asked.to_end()):
            for line in typed.lines(within=0.1):
                commands.obey(line, running.processes, say)
            place.look_after(say)
            running.look_after()
    finally:
        say("ending all")
        running.end(asked.to_hurry)
    say("all has ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
