"""Messages no worker can make sense of: dead letters, and the worker goes on."""

from __future__ import annotations

import json

from celery_hardened.demo.line import Line
from celery_hardened.demo.project import shop
from celery_hardened.demo.stage import WORKERS, Stage

TITLE = "Garbage in the queue"
STORY = (
    "A body that is no JSON, a body that is a number, and a task that only the next release knows. "
    "Four good payments follow."
)

#: Id of the task that is unknown until the next release.
UNKNOWN = "archive-1"

#: Task id, task, body and the reason its letter must have.
MESSAGES = (
    ("no-json", "shop.charge", b"\xff\xfe{ what is this", "undecodable"),
    ("a-number", "shop.charge", b"42", "malformed"),
    (UNKNOWN, "shop.archive", json.dumps([["invoice-1"], {}, {}]).encode(), "unknown_task"),
)


def play(stage: Stage) -> list[Line]:
    """Send the garbage, then good tasks; wait for the letters and the successes."""
    for task_id, task, body, _ in MESSAGES:
        stage.shop.send_raw(task, body, task_id=task_id)
    good = [f"photo-{n}" for n in range(8, 12)]
    for photo in good:
        stage.shop.send(shop.resize, photo, task_id=photo)
    expected = {task_id: reason for task_id, _, _, reason in MESSAGES}
    stage.until(lambda: stage.shop.settled([*expected, *good]))

    letters = stage.shop.letters()
    reasons = {task_id: letters[task_id].letter.reason for task_id in expected if task_id in letters}
    kept = [letters[task_id].letter.body == body for task_id, _, body, _ in MESSAGES if task_id in letters]
    done = stage.shop.successes(good)
    return [
        Line(
            "garbage",
            f"{len(kept)} of {len(MESSAGES)} bad messages are dead letters, kept to the byte",
            reasons == expected and all(kept),
        ),
        Line(
            "tasks behind it",
            f"{done} of {len(good)} ran; {stage.unharmed} of {len(WORKERS)} workers stayed up",
            stage.unharmed == len(WORKERS) and done == len(good),
        ),
    ]
