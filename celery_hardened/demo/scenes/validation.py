"""An error that no second attempt can cure: a dead letter at once."""

from __future__ import annotations

from celery_hardened.demo.line import Line
from celery_hardened.demo.project import shop
from celery_hardened.demo.stage import Stage

TITLE = "A validation error"
STORY = "A payment of -500 cents. The task says ValueError, and would say so for ever."


def play(stage: Stage) -> list[Line]:
    """Send it; wait for its letter and its result."""
    bad = "invoice-5"
    stage.shop.send(shop.charge, bad, -500, task_id=bad)
    stage.until(lambda: stage.shop.settled([bad]) and stage.shop.state(bad) == "FAILURE")

    starts = stage.diary.starts(bad)
    found = stage.shop.letters().get(bad)
    letter = found.letter if found else None
    became = f"a dead letter: {letter.reason}, {letter.error_type}" if letter else "no dead letter"
    return [
        Line(
            "validation error",
            f"{starts} attempt, then {became}",
            starts == 1
            and letter is not None
            and (letter.reason, letter.error_type, letter.attempt) == ("permanent", "ValueError", 0)
            and not stage.diary.of("retrying", bad),
        )
    ]
