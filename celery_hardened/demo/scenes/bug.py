"""A release with a bug: its victims become dead letters, and the chord of one of them is kept open."""

from __future__ import annotations

from celery_hardened.demo.line import Line
from celery_hardened.demo.project import shop
from celery_hardened.demo.stage import Stage

TITLE = "A bug"
STORY = (
    "v1 has forgotten a country, so three of five boxes cannot be shipped. One of them is a member of a "
    "chord: three boxes, then a bill for all of them."
)

#: Boxes of the chord, and their countries.
ORDER = {"box-1": "DE", "box-2": "AX", "box-3": "FR"}

#: Boxes that v1 cannot ship.
FAILING = ("box-2", "box-4", "box-5")

BILL = "bill-1"


def play(stage: Stage) -> list[Line]:
    """Send the boxes; wait for the failures; look at them as an operator would."""
    producer = stage.shop
    members = {box: shop.ship.s(box, country) for box, country in ORDER.items()}
    producer.send_chord(members, shop.bill.s(), body_id=BILL)
    for box in FAILING[1:]:
        producer.send(shop.ship, box, "AX", task_id=box)
    stage.until(lambda: producer.settled([*ORDER, *FAILING]))
    stage.until(lambda: all(producer.state(box) == "FAILURE" for box in FAILING))

    letters = {box: stored for box, stored in producer.letters().items() if box in FAILING}
    parked = [box for box, stored in letters.items() if stored.state == "parked"]
    commands = (("stats",), ("list", "--task", "shop.ship"))
    looked = [stage.celery("hardened", "dlq", *command) for command in commands]
    return [
        Line(
            "bug in v1",
            f"{len(letters)} dead letters, {len(parked)} of them parked: its chord stays open",
            len(letters) == len(FAILING) and parked == ["box-2"] and producer.state(BILL) == "PENDING" and all(looked),
        ),
    ]
