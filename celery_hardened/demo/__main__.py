"""Play the demo: ``python -m celery_hardened.demo``, or ``./dev demo`` in a checkout.

Exit codes: 0, every line of the summary is true; 1, one is not; 2, the demo
could not be set up; 128 and the signal's number, it was stopped.

``--page`` keeps everything running after the last scene, so that its page can be
looked at; Ctrl-C is how that ends, and what is summed up then is no less true.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import time

from celery_hardened.demo.accounts import balance, clearance
from celery_hardened.demo.line import Line
from celery_hardened.demo.scenes import SCENES
from celery_hardened.demo.screen import Screen
from celery_hardened.demo.stage import Interrupted, Stage, StageError
from celery_hardened.embedded import EmbeddedServerError

#: Seconds between two signs that nobody has asked to end yet.
_LONG = 3600.0


def main() -> int:
    """Play all scenes, print the summary, answer the exit code."""
    parser = argparse.ArgumentParser(
        prog="celery_hardened.demo",
        description="The main job of celery_hardened, live: a private Valkey, real workers, and everything that "
        "can go wrong. Takes well under a minute, leaves nothing behind, and exits with 0 only if every line of "
        "its summary is true.",
    )
    parser.add_argument("--page", action="store_true", help="keep everything running until Ctrl-C, to look at its page")
    parser.add_argument("--port", type=int, default=0, help="of the page; by default any that is free")
    options = parser.parse_args()
    began = time.monotonic()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    screen = Screen(sys.stdout, os.environ)
    stage = Stage(screen, port=options.port)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stage.ask_to_end)
    try:
        screen.title("celery_hardened: the main job, live")
        with stage:
            lines = _play(stage)
            lines.append(balance(stage))
            if options.page:
                _stay(stage, lines[-1])
            logs = "" if all(line.true for line in lines) else stage.logs()
        lines.append(clearance(stage))
        if logs:
            screen.heading("What the workers logged")
            screen.output(logs)
        return _sum_up(screen, lines, seconds=time.monotonic() - began)
    except Interrupted as interrupted:
        screen.verdict("stopped; nothing is left running.", good=False)
        return 128 + int(interrupted.args[0])
    except (StageError, EmbeddedServerError) as problem:
        screen.verdict(f"the demo could not go on: {problem}", good=False)
        return 2
    except BrokenPipeError:
        # Whoever read this went away; the interpreter must not fail on its last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _play(stage: Stage) -> list[Line]:
    lines: list[Line] = []
    for number, scene in enumerate(SCENES, start=1):
        stage.scene = scene.title
        stage.screen.heading(f"{number}  {scene.title}")
        stage.screen.paragraph(scene.story)
        found = scene.play(stage)
        stage.screen.lines(found)
        lines += found
    return lines


def _stay(stage: Stage, books: Line) -> None:
    """Until somebody has seen enough."""
    stage.scene = "the last scene is over"
    stage.screen.heading("The page")
    stage.screen.lines([books])
    stage.screen.paragraph(f"{stage.page.url} goes on until Ctrl-C.")
    try:
        while True:
            stage.until(lambda: False, within=_LONG)
    except Interrupted:
        stage.go_on_to_the_end()


def _sum_up(screen: Screen, lines: list[Line], *, seconds: float) -> int:
    screen.heading("What was promised, and what happened")
    screen.lines(lines)
    true = sum(line.true for line in lines)
    screen.verdict(f"{true} of {len(lines)} lines are true. {seconds:.0f} s.", good=true == len(lines))
    return 0 if true == len(lines) else 1


if __name__ == "__main__":
    sys.exit(main())
