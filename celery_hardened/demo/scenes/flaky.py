"""A dependency is down for a moment: retries, with full jitter, until it is back."""

from __future__ import annotations

from celery_hardened.demo.line import Line
from celery_hardened.demo.project import shop
from celery_hardened.demo.project.gateway import REFUSALS
from celery_hardened.demo.stage import Stage
from celery_hardened.settings import Settings

TITLE = "A flaky dependency"
STORY = (
    "Four payments at once; the gateway answers 503 to the first two requests of each. A 503 is in the "
    "built-in table of transient errors, so nothing was configured for it."
)


def play(stage: Stage) -> list[Line]:
    """Send the payments; wait for all to succeed."""
    ids = [f"invoice-{n}" for n in range(1, 5)]
    for invoice in ids:
        stage.shop.send(shop.charge, invoice, 1200, task_id=invoice)
    stage.until(lambda: stage.shop.settled(ids))

    diary = stage.diary
    done = stage.shop.successes(ids)
    paid = [event.fields["invoice"] for event in diary.of("paid")]
    third = all(diary.starts(invoice) == REFUSALS + 1 for invoice in ids)

    retries = [event for invoice in ids for event in diary.of("retrying", invoice)]
    delays = [event.fields["delay"] for event in retries]
    defaults = Settings()
    caps = [defaults.retry_backoff * 2 ** (event.fields["attempt"] - 1) for event in retries]
    within = all(defaults.retry_floor <= delay <= cap for delay, cap in zip(delays, caps, strict=True))
    different = len(set(delays))
    spread = f"{min(delays, default=0):.2f}–{max(delays, default=0):.2f} s"  # noqa: RUF001
    return [
        Line(
            "flaky dependency",
            f"{done} of {len(ids)} payments succeeded at attempt {REFUSALS + 1}, each taken once",
            done == len(ids) and third and sorted(paid) == ids,
        ),
        Line(
            "jittered retries",
            f"{len(delays)} retries, {different} different delays, {spread}, within caps",
            len(delays) == REFUSALS * len(ids)
            # Those that were raised to the floor are alike: about one in thirteen.
            and different >= len(delays) / 2
            and within,
        ),
    ]
