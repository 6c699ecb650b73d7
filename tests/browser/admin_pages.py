"""Our pages in the admin, and how one gets to each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone

from selenium.webdriver.common.by import By

from tests.support.django_live_page import Page
from tests.support.until import until

SCHEDULES = "/admin/django_celery_beat/periodictask/"
LETTERS = "/admin/celery_hardened/deadletter/"
LIST = f"{LETTERS}list/"
BULK = f"{LETTERS}bulk/"
RUNS = "/admin/celery_hardened/schedulerun/"
OVERVIEW = "/admin/celery_hardened/overview/"

Go = Callable[[Page], None]


def _at(path: str) -> Go:
    return lambda page: page.open(path)


def _schedule(page: Page) -> None:
    page.open(SCHEDULES)
    page.follow("nightly report")


def _preview(page: Page) -> None:
    _schedule(page)
    page.press("Preview the coming slots")


def _backfill(page: Page) -> None:
    page.open(SCHEDULES)
    page.follow("poll the warehouse")
    page.follow("Backfill a range…")


def _slots_to_backfill(page: Page) -> None:
    _backfill(page)
    now = datetime.now(timezone.utc)
    for label, moment in (("From", now - timedelta(minutes=2)), ("To", now)):
        page.set_moment(label, f"{moment:%Y-%m-%d}", f"{moment:%H:%M:%S}")
    page.press("Show the slots")


def _do(action: str) -> Go:
    return lambda page: page.do(action, "nightly report", "send reminders")


def _letter(page: Page) -> None:
    page.open(f"{LIST}?task=shop.charge")
    first = page.driver.find_element(By.CSS_SELECTOR, "#content tbody td a")
    page.leave_by(first.click)


def _edit(page: Page) -> None:
    _letter(page)
    page.follow("Edit arguments and redrive…")


def _ask(what: str) -> Go:
    def go(page: Page) -> None:
        page.open(LIST)
        page.press(what)

    return go


def _refused(page: Page) -> None:
    _ask("Redrive all that match…")(page)
    page.browser.ask("document.querySelectorAll('[required]').forEach(one => one.removeAttribute('required'))")
    page.press("Redrive")


def _first_of(path: str) -> Go:
    def go(page: Page) -> None:
        page.open(path)
        first = page.driver.find_element(By.CSS_SELECTOR, "#content tbody th a")
        page.leave_by(first.click)

    return go


#: By a name for tests and pictures.
PAGES: Mapping[str, Go] = {
    "schedules": _at(SCHEDULES),
    "schedule": _schedule,
    "new-schedule": _at(f"{SCHEDULES}add/"),
    "schedule-preview": _preview,
    "pause": _do("Pause selected tasks…"),
    "skip": _do("Skip the next slot of selected tasks…"),
    "backfill": _backfill,
    "backfill-slots": _slots_to_backfill,
    "dead-letters": _at(LETTERS),
    "dead-letters-list": _at(LIST),
    "dead-letters-wrong-filter": _at(f"{LIST}?since=yesterday"),
    "dead-letter": _letter,
    "edit-arguments": _edit,
    "redrive": _ask("Redrive all that match…"),
    "redrive-refused": _refused,
    "discard": _ask("Discard all that match…"),
    "bulk-actions": _at(BULK),
    "bulk-action": _first_of(BULK),
    "runs": _at(RUNS),
    "run": _first_of(RUNS),
    "overview": _at(OVERVIEW),
}


def make_history(page: Page) -> None:
    """Orders and images fail, a dry run is made of a redrive, a schedule has run: so that no page is empty."""
    page.open("/shop/")
    page.press("Break the gateway")
    page.fill("Orders", "1001 1002 1003 1004 1005 1006 1007")
    page.fill("Images", "logo.bmp stock.tiff")
    page.press("Order")

    def are_there() -> bool:
        page.open(LIST)
        return "9 letters match" in page.text

    until(are_there, within=60, what="nine dead letters", every=0.3)
    page.press("Redrive all that match…")
    page.fill("Reason", "to see what would be sent")
    page.tick("Dry run only")
    page.press("Redrive")

    def is_over() -> bool:
        page.open(BULK)
        return "9 of 9" in page.text or "ended" in page.browser.texts("#content tbody td")

    until(is_over, within=60, what="the dry run to end", every=0.3)

    def has_run() -> bool:
        page.open(SCHEDULES)
        return page.column("poll the warehouse", "last_outcome") == "fired"

    until(has_run, within=60, what="a schedule to have run", every=0.3)

    def is_told() -> bool:
        page.open(RUNS)
        return "success" in page.text

    until(is_told, within=60, what="the run to be in the history", every=0.3)
