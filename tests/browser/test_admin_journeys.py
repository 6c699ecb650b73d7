"""What people do in the admin, in a real browser, with a real worker and real beats behind it."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.browser.conftest import StartSite
from tests.fixtures.beats import BeatProcess
from tests.fixtures.browser import StartBrowser
from tests.support.browser import Browser
from tests.support.django_live import LiveSite
from tests.support.django_live_page import Page
from tests.support.until import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("admin journeys"),
]

SCHEDULES = "/admin/django_celery_beat/periodictask/"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, start_site: StartSite) -> LiveSite:
    """On SQLite with dead letters in Redis, and on PostgreSQL with dead letters in it."""
    if request.param == "sqlite":
        return start_site()
    return start_site(postgres_url=request.getfixturevalue("postgres").database(), letters="django")


@pytest.fixture(scope="module")
def browser(site: LiveSite, start_browser: StartBrowser) -> Browser:
    return start_browser()


@pytest.fixture
def page(site: LiveSite, browser: Browser) -> Iterator[Page]:
    """The admin, by a person who has logged in; nothing was in the console when it ends."""
    page = Page(browser, site.url)
    browser.driver.delete_all_cookies()
    page.log_in()
    yield page
    assert browser.complaints() == []


def told(site: LiveSite, word: str) -> list[float]:
    """When runs of ``shop.note`` with that word began."""
    lines = [line.rsplit(" ", 1) for line in site.notes("told")]
    return [float(at) for said, at in lines if said == word]


def most_at_once(lines: list[str]) -> int:
    """Runs of the report that went on at the same time, by its notes."""
    going, most = 0, 0
    for line in lines:
        going = going + 1 if line.startswith("begun") else max(0, going - 1)  # the end of one that began before them
        most = max(most, going)
    return most


def test_an_edit_is_obeyed_at_once(site: LiveSite, page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments and policy are saved in the form, and the very next runs are as it says."""
    page.do("Enable selected tasks", "heartbeat")
    until(lambda: len(told(site, "old")) >= 3, within=30, what="the schedule to run")
    page.open(SCHEDULES)
    page.follow("heartbeat")
    page.fill("Positional Arguments", '["new"]')
    page.choose("Overlap", "Skip")
    saved = time.time()
    page.press("Save")
    # Two seconds are promised; five times as many, for the machine may be busy.
    until(lambda: told(site, "new"), within=10, what="a run as it was edited", every=0.01)
    took = told(site, "new")[0] - saved
    with capsys.disabled():
        sys.stderr.write(f"\nan edit was obeyed {took:.2f} s after the click\n")
    # The worker has four processes: three may begin the last of the old a moment after one began the first new one.
    late = [at for at in told(site, "old") if at - saved > took]
    assert len(late) <= 3, "no run as it was before comes after one as it was edited"


def test_a_policy_is_obeyed(site: LiveSite, page: Page) -> None:
    """Runs that went on side by side do so no more once the form has said that they may not overlap."""
    long = site.out / "reports take long"

    def skipped() -> int:
        page.open(SCHEDULES)
        return int(page.column("reports", "skipped"))

    page.do("Enable selected tasks", "reports")
    try:
        long.touch()
        until(lambda: most_at_once(site.notes("reports")) >= 2, within=30, what="two reports to go on at once")
        page.follow("reports")
        page.choose("Overlap", "Skip")
        page.press("Save and continue editing")
        until(lambda: skipped() >= 1, within=30, what="beat to know of it")
        long.unlink()
        until(lambda: site.notes("reports")[-1].startswith("done") and site.is_idle, within=60, what="those to be over")

        last = len(site.notes("reports")) - 1  # one may have begun by now, and find the file
        long.touch()
        until(lambda: site.notes("reports")[-1].startswith("begun"), within=30, what="one more report to begin")
        at_first = skipped()
        until(lambda: skipped() >= at_first + 2, within=30, what="two slots to be passed over because of it")
        assert most_at_once(site.notes("reports")[last:]) == 1
        page.do("Disable selected tasks", "reports")
    finally:
        long.unlink(missing_ok=True)


def test_a_pause_holds_and_a_resumption_fires(site: LiveSite, page: Page) -> None:
    """While it is paused its slots pass and none is fired, with the reason in the list; then it goes on."""
    page.do("Enable selected tasks", "paused one")
    until(lambda: told(site, "paused"), within=30, what="the schedule to run")
    page.do("Pause selected tasks…", "paused one")
    page.fill("Reason", "stock-taking")
    page.press("Pause")
    assert page.said == ["Paused one: Paused until it is resumed: stock-taking"]
    # What was fired before the pause is with the beat still, in the queue, or runs.
    until(
        lambda: not site.has_claimed("paused one") and site.is_idle, within=30, what="what was fired before to be over"
    )
    before = len(told(site, "paused"))

    def passed() -> int:
        page.open(SCHEDULES)
        return int(page.column("paused one", "skipped"))

    at_first = passed()
    until(lambda: passed() >= at_first + 5, within=30, what="five slots to pass")
    assert len(told(site, "paused")) == before
    assert "paused until it is resumed by ada: stock-taking" in page.column("paused one", "state")

    page.do("Resume selected tasks", "paused one")
    until(lambda: len(told(site, "paused")) >= before + 3, within=30, what="it to run again")
    page.open(SCHEDULES)
    assert page.column("paused one", "state") == "ok"
    page.do("Disable selected tasks", "paused one")


def test_all_letters_of_a_cause_are_redriven_once(site: LiveSite, page: Page) -> None:
    """The gateway breaks, orders fail, their group is found, the gateway is mended, and each order is paid once."""
    orders = [str(number) for number in range(101, 108)]
    page.open("/shop/")
    page.press("Break the gateway")
    page.fill("Orders", " ".join(orders))
    page.press("Order")

    def group() -> str | None:
        page.open("/admin/celery_hardened/deadletter/")
        found = [
            text for text in page.browser.texts("main a, #content a") if "GatewayTimeoutError in shop.charge" in text
        ]
        return found[0] if found else None

    until(lambda: (group() or "").startswith(f"{len(orders)} "), within=60, what="a group of all of them", every=0.5)
    assert site.notes("paid") == []

    page.open("/shop/")
    page.press("Mend the gateway")
    page.follow(group() or "")
    page.press("Redrive all that match…")
    page.fill("Reason", "the gateway answers again")
    page.press("Redrive")
    until(lambda: len(site.notes("paid")) >= len(orders), within=60, what="the orders to be paid")
    until(lambda: site.is_idle, within=30, what="nothing to be under way")
    assert Counter(site.notes("paid")) == dict.fromkeys(orders, 1)
    until(lambda: not group(), within=30, what="the group to be gone", every=0.5)


def test_the_page_names_the_new_leader(site: LiveSite, page: Page) -> None:
    """The beat that leads is killed; the list names the one that took over, and schedules go on."""
    page.do("Enable selected tasks", "of the leader")

    def named() -> str:
        page.open(SCHEDULES)
        found = re.search(r"Leading: \S+ \(pid (\d+)\)", page.text)
        return found[1] if found else ""

    def named_leader() -> BeatProcess | None:
        leader = site.leader
        return leader if leader is not None and named() == str(leader.pid) else None

    first = until(named_leader, within=30, what="the page to name the one that leads")
    assert first is not None
    killed = time.time()
    first.kill()
    (other,) = [beat for beat in site.beats if beat is not first]
    until(lambda: named() == str(other.pid), within=30, what="the page to name the other one")
    until(lambda: [at for at in told(site, "led") if at > killed], within=30, what="schedules to go on")
