"""A small shop. It takes payments, resizes photos and ships boxes, and each has its own way to fail.

It is hardened by one line. Broker and result backend come from Celery's own
environment variables, the gateway's address from ``$SHOP_GATEWAY``.
"""

from __future__ import annotations

import json
import os
import signal
from urllib.request import Request, urlopen

from celery import Celery
from celery.schedules import crontab

from celery_hardened import HardenedTask, harden
from celery_hardened.demo.project.record import keep_record

#: The release that is deployed. Bugs of v1 are fixed in v2.
VERSION = os.environ.get("SHOP_VERSION", "v1")

app = Celery("shop", set_as_current=False)
app.conf.update(
    task_default_queue="shop",
    hardened_version=VERSION,
    hardened_death_delay=0.5,  # an audience has less patience than the default, 1 s
    # Beats have something to do, and in a demo that is not played at midnight of New Year's Eve nothing to fire.
    beat_schedule={
        "close-the-year": {
            "task": "shop.bill",
            "schedule": crontab(0, 0, day_of_month="1", month_of_year="1"),
            "args": ([],),
        }
    },
)
harden(app)
keep_record()

ZONES = {"DE": 450, "FR": 700}
if VERSION != "v1":
    ZONES["AX"] = 1200


@app.task(name="shop.charge", base=HardenedTask, log_args=("invoice",))  # type: ignore[untyped-decorator]
def charge(invoice: str, cents: int) -> str:
    """Take a payment. A gateway that is down is worth another try, an amount that is none is not."""
    if cents <= 0:
        raise ValueError(f"{cents} cents is no amount")
    order = json.dumps({"invoice": invoice, "cents": cents}).encode()
    with urlopen(Request(os.environ["SHOP_GATEWAY"], data=order), timeout=10) as answer:  # noqa: S310 - our own URL
        return str(json.load(answer)["receipt"])


@app.task(name="shop.resize", base=HardenedTask, log_args=("photo",))  # type: ignore[untyped-decorator]
def resize(photo: str) -> str:
    """Resize a photo. One of them does what a bug in a C library or the kernel's memory killer does."""
    if photo == "bomb.png":
        os.kill(os.getpid(), signal.SIGKILL)
    return photo


@app.task(name="shop.ship", base=HardenedTask, log_args=("box",))  # type: ignore[untyped-decorator]
def ship(box: str, country: str) -> int:
    """Ship a box; its price in cents. v1 has forgotten a country."""
    del box
    return ZONES[country]


@app.task(name="shop.bill", base=HardenedTask)  # type: ignore[untyped-decorator]
def bill(prices: list[int]) -> int:
    """The body of a chord: add up what the boxes of one order cost."""
    return sum(prices)


if VERSION != "v1":

    @app.task(name="shop.archive", base=HardenedTask, log_args=("invoice",))  # type: ignore[untyped-decorator]
    def archive(invoice: str) -> str:
        """A task that comes with v2. A producer that is ahead of the workers has sent it already."""
        return invoice
