"""A task that takes its process down is stopped; the tasks behind it run."""

from __future__ import annotations

from celery_hardened.demo.line import Line
from celery_hardened.demo.project import shop
from celery_hardened.demo.stage import WORKERS, Stage

TITLE = "A task that kills its process"
STORY = (
    "One photo kills whatever process opens it, by SIGKILL. Six more photos are sent right behind it, "
    "and another one at the end."
)


def play(stage: Stage) -> list[Line]:
    """Send the killer and those behind it; wait for poison; send one more."""
    bomb = "bomb.png"
    behind = [f"photo-{n}" for n in range(1, 7)]
    stage.shop.send(shop.resize, bomb, task_id=bomb)
    for photo in behind:
        stage.shop.send(shop.resize, photo, task_id=photo)
    stage.until(lambda: stage.shop.settled([bomb, *behind]))
    later = "photo-7"
    stage.shop.send(shop.resize, later, task_id=later)
    stage.until(lambda: stage.shop.settled([later]))

    processes = {event.fields["pid"] for event in stage.diary.of("started", bomb)}
    starts = stage.diary.starts(bomb)
    found = stage.shop.letters().get(bomb)
    letter = found.letter if found else None
    others = [*behind, later]
    done = stage.shop.successes(others)
    became = f"a dead letter: {letter.reason}" if letter else "no dead letter"
    return [
        Line(
            "killer task",
            f"{starts} starts, {len(processes)} dead processes, then {became}",
            starts == len(processes) == 3 and letter is not None and (letter.reason, letter.deaths) == ("poison", 3),
        ),
        Line(
            "tasks behind it",
            f"{done} of {len(others)} ran; {stage.unharmed} of {len(WORKERS)} workers stayed up",
            done == len(others) and stage.unharmed == len(WORKERS),
        ),
    ]
