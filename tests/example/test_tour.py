"""The tour of example_project's README, step by step, in the processes that ``./dev example`` runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import pytest

from tests.fixtures.browser import StartBrowser
from tests.support.axe import violations
from tests.support.example_site import PASSWORD, ROOT, SITE, ExampleSite
from tests.support.until import until
from tests.support.visitor import Visitor

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("example"),
]


README = (ROOT / "example_project" / "README.md").read_text()


def told(words: str) -> str:
    """*words*, which the tour promises."""
    assert words in README, f"the README does not say {words!r}"
    return words


@pytest.fixture(scope="module", params=["sqlite and valkey", "postgresql and rabbitmq"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExampleSite]:
    """As the first reader has it, and with the servers that variables name."""
    env = {}
    if request.param != "sqlite and valkey":
        env = {
            "EXAMPLE_DATABASE": request.getfixturevalue("postgres").database(),
            "EXAMPLE_BROKER": request.getfixturevalue("rabbitmq").add_vhost(uuid.uuid4().hex[:10]),
        }
    site = ExampleSite(tmp_path_factory.mktemp("tour") / "example", env=env)
    request.node.stash[SITE] = site
    try:
        site.start()
        yield site
    finally:
        site.stop()


@pytest.fixture
def shop(site: ExampleSite) -> Visitor:
    return site.visitor()


@pytest.fixture
def admin(site: ExampleSite) -> Visitor:
    """Somebody who has logged in."""
    visitor = site.visitor()
    visitor.open("/admin/")
    visitor.press("Log in", username="admin", password=PASSWORD)
    assert "Log out" in visitor.text
    return visitor


def number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, f"no {pattern!r} in {text[:2000]}"
    return int(found[1])


def charges(shop: Visitor) -> int:
    return number(r"(\d+) charges of", shop.open("/gateway/"))


def placed_and_paid(shop: Visitor) -> tuple[int, int, int]:
    text = shop.open("/orders/")
    return (number(r"(\d+) placed", text), number(r"(\d+) paid,", text), number(r"(\d+) invoiced", text))


def switch(shop: Visitor, mode: str) -> None:
    shop.open("/gateway/")
    shop.press("Switch", mode=mode)


def _row_of(name: str, page: str) -> str:
    """The key that a list of the admin has for the row of that name."""
    found = re.search(rf"/periodictask/(\d+)/change/[^>]*>{name}<", page)
    assert found, f"no row {name!r}"
    return found[1]


def all_paid_once(shop: Visitor) -> None:
    """Every order is paid and invoiced, the gateway has made one charge for each, and none twice."""
    until(lambda: len(set(placed_and_paid(shop))) == 1, within=90, what="all orders to be paid and invoiced", every=0.3)
    ledger = shop.open("/gateway/")
    assert number(r"(\d+) charges of", ledger) == placed_and_paid(shop)[0]
    assert told("0 orders charged twice") in ledger


def test_1_twenty_orders(site: ExampleSite, shop: Visitor) -> None:
    """Twenty orders are paid and invoiced."""
    shop.open("/")
    assert told("20 orders are placed.") in shop.press("Place 20 orders")
    all_paid_once(shop)


def test_2_a_killed_worker(site: ExampleSite, shop: Visitor) -> None:
    """The payments worker is killed while the gateway has charged and not answered: the order is paid once."""
    switch(shop, "slow")
    before = charges(shop)
    shop.open("/")
    shop.press("Place an order")
    until(lambda: charges(shop) == before + 1, within=60, what="the gateway to charge", every=0.1)
    pid = site.kill("payments")
    assert placed_and_paid(shop)[1] == before, "it was killed before the answer came"
    switch(shop, "works")

    until(lambda: told("payments was killed by SIGKILL; it is started again in 5 s") in site.said(), what="its death")
    until(lambda: site.pid("payments") not in (None, pid), what="another worker in its place")
    all_paid_once(shop)
    assert told("2 times, charged once") in shop.open("/gateway/")


def test_3_an_outage(shop: Visitor, admin: Visitor) -> None:
    """The gateway is down, twenty orders die, their group is redriven, and each is paid once."""
    switch(shop, "is down")
    shop.open("/")
    shop.press("Place 20 orders")
    group = told("20 × GatewayError in shop.charge")  # noqa: RUF001
    until(lambda: group in admin.open("/admin/celery_hardened/deadletter/"), within=120, what=group, every=0.5)
    placed, paid, _ = placed_and_paid(shop)
    assert placed == paid + 20

    switch(shop, "works")
    admin.follow(group)
    admin.press("Redrive all that match…")
    assert told("20 would be sent") in admin.text
    admin.press("Redrive", why="the gateway is up again", rate="10")
    until(
        lambda: "20 of 20 letters sent" in admin.open(admin.address),
        within=60,
        what="a worker to redrive them",
        every=0.5,
    )
    all_paid_once(shop)
    assert "0 open" in admin.open("/admin/celery_hardened/deadletter/")


def test_4_no_beat_over_a_slot(site: ExampleSite, shop: Visitor, admin: Visitor) -> None:
    """No beat runs over some slots: the latest is made up for, once, and says how many it stands for."""

    def missed() -> list[int]:
        text = shop.open("/reports/").partition("Comparisons with the gateway")[2]
        return [int(one) for one in re.findall(r"\d\d:\d\d:\d\d \d\d:\d\d:\d\d (\d+) \d+ \d+ 0", text)]

    until(missed, within=60, what="a comparison")
    site.type("stop beat1 beat2")
    until(lambda: site.said().count("is asked to stop") == 2, what="the beats to be asked")
    until(
        lambda: told("Nobody leads") in admin.open("/admin/celery_hardened/overview/"), within=60, what="nobody to lead"
    )
    stopped = time.monotonic()
    until(lambda: time.monotonic() > stopped + 13, within=60, what="two slots to pass, by more than their grace")
    site.type("start beat1 beat2")
    until(lambda: len(re.findall(r"^beat\d runs, pid", site.said(), re.MULTILINE)) == 2, what="both beats to run")
    until(lambda: any(missed()), within=60, what="a run that stands for those that were missed", every=0.3)
    history = told("fired, stands for 3 missed before it").replace(" 3 ", r" \d+ ")
    runs = "/admin/celery_hardened/schedulerun/?q=compare"
    until(lambda: re.search(history, admin.open(runs)), within=60, what="the run history to say so", every=0.5)


def test_5_the_leader_is_killed(site: ExampleSite, admin: Visitor) -> None:
    """The beat that leads is killed, and the overview names the other one."""

    def leader() -> int:
        found = re.search(r"\(pid (\d+)\) leads", admin.open("/admin/celery_hardened/overview/"))
        return int(found[1]) if found else 0

    beats = {site.pid("beat1"): "beat1", site.pid("beat2"): "beat2"}
    first = until(lambda: leader() in beats and leader(), within=60, what="the overview to name a beat")
    site.kill(beats[first])
    (other,) = [pid for pid in beats if pid != first]
    until(lambda: leader() == other, within=60, what="the overview to name the other one")
    until(lambda: site.pid(beats[first]) not in (None, first), what="the first to be started again")


def test_6_an_import_goes_on(site: ExampleSite, shop: Visitor) -> None:
    """The import's worker is killed: it goes on behind its last save, and every product is there."""
    shop.open("/imports/")
    shop.press("Import")
    until(lambda: number(r"(\d+) rows handled", shop.open("/imports/")) >= 60, within=60, what="sixty rows", every=0.2)
    site.kill("general")
    until(lambda: re.search(r"rows handled done 1, then \d+", shop.open("/imports/")), within=120, what="its end")
    first, then = map(int, re.search(r"done (\d+), then (\d+)", shop.text).groups())  # type: ignore[union-attr]
    handled = number(r"(\d+) rows handled", shop.text)
    assert first == 1
    assert then > 40, "it did not begin anew"
    assert 300 <= handled <= 300 + 45, "no more rows were done twice than since the last save"
    assert "303 products" in shop.text


def test_7_pictures(shop: Visitor, admin: Visitor) -> None:
    """A picture that is too large for a message is made small; what is none is a dead letter."""
    shop.open("/pictures/")
    shop.press("Send")
    until(lambda: shop.open("/pictures/") and "/pictures/1.png" in shop.html, what="the picture")
    shop.send_file("Send", "image", "note.txt", b"no picture")
    group = told("1 × NotAPictureError in shop.make_thumbnail")  # noqa: RUF001
    until(lambda: group in admin.open("/admin/celery_hardened/deadletter/"), what="its letter", every=0.3)
    admin.follow(group)
    admin.press("Discard all that match…")
    admin.press("Discard", why="no picture")
    until(lambda: "0 open" in admin.open("/admin/celery_hardened/deadletter/"), what="it to be closed", every=0.3)


def test_8_the_schedules(admin: Visitor) -> None:
    """The admin's list of periodic tasks: who leads, and no schedule that cannot be used."""
    text = admin.open("/admin/django_celery_beat/periodictask/")
    assert "Leading:" in text
    assert "compare with the gateway ok" in text
    assert "prune the run history ok" in text
    admin.press("Go", action="run_tasks", _selected_action=_row_of("nightly report", admin.html))
    assert "Nightly report: Run now, as task" in admin.text
    until(lambda: "No report yet." not in admin.open("/reports/"), within=60, what="the report of yesterday", every=0.3)


def test_8_the_pages(site: ExampleSite, start_browser: StartBrowser) -> None:
    """In a browser: nothing serious for axe in both schemes, a page that keeps up to date, a quiet console."""
    browser = start_browser()
    browser.open(f"{site.url}/orders/")
    before = browser.text("main p")
    visitor = site.visitor()
    visitor.open("/")
    visitor.press("Place an order")
    until(lambda: browser.text("main p") != before, within=60, what="the page to show the order by itself")
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        for path in ("/", "/orders/", "/gateway/", "/imports/", "/pictures/", "/reports/"):
            browser.open(site.url + path)
            assert violations(browser) == [], f"{path} {scheme}"
    assert browser.complaints() == []


def test_8_valkey_dies(site: ExampleSite, shop: Visitor) -> None:
    """The Redis of all messages and records is killed: it comes back with all that it had, and work goes on."""
    shop.open("/")
    shop.press("Place 20 orders")
    pid = site.kill("valkey")
    until(lambda: site.pid("valkey") != pid, within=30, what="it to be started again")
    all_paid_once(shop)


def test_8_a_folder_is_for_one(site: ExampleSite) -> None:
    """A second example in the same folder is refused with a sentence, and the first goes on."""
    second = ExampleSite(site.folder)
    second.output = site.folder.with_suffix(".second")
    try:
        with pytest.raises(AssertionError, match=r"ended with 2 .*\n.*the example runs already in"):
            second.start()
    finally:
        second.stop()
    assert site.pid("web") is not None


def test_8_a_second_terminal(site: ExampleSite) -> None:
    """With the file that says where everything is, ``manage.py hardened`` tells of this example."""
    command = f". {site.folder}/environment && exec {sys.executable} manage.py hardened schedule list"
    asked = subprocess.run(
        ["sh", "-c", command],
        cwd=ROOT / "example_project",
        env={**os.environ, "PYTHONPATH": str(ROOT)} | site.servers,
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    assert "compare with the gateway" in asked.stdout


def test_9_the_end(site: ExampleSite, shop: Visitor) -> None:
    """Ctrl-C ends everything that was started, and with code 0."""
    all_paid_once(shop)
    assert site.interrupt() == 0
    until(lambda: not site.left(), within=30, what="every process to be gone")
    assert told("all has ended") in site.said()
