"""The overview in a real browser: it refreshes in place, says when it cannot, and needs neither scripts nor width."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest
from celery import Celery
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections
from django.test import Client, override_settings

from celery_hardened import Hardening, harden
from celery_hardened.attendance.record import WorkerRecord
from celery_hardened.attendance.store import Keys, WorkerStore
from celery_hardened.contrib.django.admin import OverviewAdmin
from celery_hardened.contrib.django.overview import watch
from tests.fixtures.browser import StartBrowser
from tests.stores.letters import letter
from tests.support import django_project, django_schedules
from tests.support.browser import Browser
from tests.support.client import client_side
from tests.support.until import until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

PAGE = "/admin/celery_hardened/overview/"

#: Neither inline scripts and styles, nor anybody else's files.
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'"


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None: ...


class Site:
    """The admin over HTTP, under a strict policy of content. It can be told to fail."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.status: str | None = None
        self._app = StaticFilesHandler(WSGIHandler())
        self._server = make_server("127.0.0.1", 0, self._answer, server_class=Server, handler_class=Quiet)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        self.asked.append(environ["PATH_INFO"])
        if self.status is not None and environ["PATH_INFO"].endswith("/part/"):
            start(self.status, [("Content-Type", "text/plain")])
            return [b""]

        def answer(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            return start(status, [*headers, ("Content-Security-Policy", POLICY)], *more)

        if environ["PATH_INFO"] == "/favicon.ico":
            start("204 No Content", [])
            return [b""]
        found = self._app(environ, answer)
        try:
            return [b"".join(found)]
        finally:
            found.close()
            connections.close_all()

    def refreshes(self) -> int:
        return sum(1 for path in self.asked if path.endswith("/part/"))

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture
def site() -> Iterator[Site]:
    with override_settings(
        ROOT_URLCONF="tests.support.django_admin_urls",
        INSTALLED_APPS=[*_installed(), "django.contrib.staticfiles"],
    ):
        made = Site()
        yield made
        made.stop()


def _installed() -> list[str]:
    from django.conf import settings

    return [one for one in settings.INSTALLED_APPS if one != "django.contrib.staticfiles"]


@pytest.fixture
def shop(records_url: str, unique: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hardening]:
    """The admin's app, on a Redis."""
    monkeypatch.setattr(watch, "FRESH", 0.0)
    with client_side():
        app = Celery("shop", broker=records_url, set_as_current=False)
        app.conf.update(task_default_queue="mail", hardened_key_prefix=unique)
        harden(app)
        app.finalize()
        monkeypatch.setattr(OverviewAdmin, "celery_app", app)
        shop = Hardening.expect(app)
        vars(shop)["_overview"] = watch.Watch(watch.watch_of(shop).asks, patience=20.0)  # a browser starts beside it
        yield shop
        app.close()


@pytest.fixture
def session() -> Iterator[str]:
    """Of a superuser."""
    _clear()
    client = Client()
    client.force_login(User.objects.create_superuser("ada", password="x"))
    yield client.cookies["sessionid"].value
    _clear()


def _clear() -> None:
    django_project.empty("default", "celery_hardened")
    django_schedules.clear("default")
    for model in (User, Session):
        model.objects.all().delete()


def opened(browser: Browser, site: Site, session: str) -> Browser:
    """The page, for who has logged in."""
    browser.open(f"{site.url}/admin/login/")
    browser.driver.add_cookie({"name": "sessionid", "value": session, "path": "/"})
    browser.open(site.url + PAGE)
    return browser


@pytest.fixture(scope="module")
def with_scripts(start_browser: StartBrowser) -> Browser:
    return start_browser()


def test_it_refreshes_in_place(with_scripts: Browser, site: Site, shop: Hardening, session: str) -> None:
    """A new problem appears, and is announced once, without the page being loaded again; the focus stays where it was,
    and the console has nothing to complain of."""
    page = opened(with_scripts, site, session)
    assert "None. Whatever is known is as it should be." in page.text("#overview-problems")
    page.driver.execute_script("window.same = true; document.querySelector('#overview-all-letters').focus()")
    shop.dead_letters.put(letter(queue="mail"))
    until(
        lambda: "more dead letters in 15m: 1" in page.text("#overview-problems"),
        within=60.0, what="the problem to appear",
    )  # fmt: skip
    assert page.ask("document.getElementById('overview-said').textContent") == "1 open problem: 1 warning."
    assert page.ask("window.same") is True
    assert page.ask("document.activeElement.id") == "overview-all-letters"
    page.driver.execute_script(
        "window.said = 0; new MutationObserver(() => { window.said += 1; })"
        ".observe(document.getElementById('overview-said'), {childList: true, characterData: true, subtree: true})"
    )
    before = site.refreshes()
    until(lambda: site.refreshes() >= before + 2, within=60.0, what="two more refreshes")
    assert page.ask("window.said") == 0
    assert page.complaints() == []


def test_it_says_when_it_cannot(with_scripts: Browser, site: Site, shop: Hardening, session: str) -> None:
    """An answer that is none leaves the numbers, with their age; the next good one takes that away. Who is logged out
    is told."""
    page = opened(with_scripts, site, session)
    site.status = "500 Internal Server Error"
    until(
        lambda: page.text("#overview-trouble").startswith("Could not refresh (status 500). What is shown is more than"),
        within=60.0, what="the trouble to be told",
    )  # fmt: skip
    assert "Queues" in page.text("#overview-queues")
    site.status = None
    until(lambda: page.text("#overview-trouble") == "", within=60.0, what="the trouble to be over")
    Session.objects.all().delete()
    until(lambda: page.text("#overview-trouble").startswith("You are logged out"), within=60.0, what="that to be told")
    page.complaints()  # of the statuses


def test_a_hidden_tab_asks_nobody(with_scripts: Browser, site: Site, shop: Hardening, session: str) -> None:
    """Hidden it stops; shown again it asks at once."""
    page = opened(with_scripts, site, session)
    until(lambda: site.refreshes() >= 1, within=60.0, what="the first refresh")
    hide = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => arguments_[0]});"
    hide += "document.dispatchEvent(new Event('visibilitychange'));"
    page.driver.execute_script(f"const arguments_ = arguments; window.ticks = 0; {hide}", True)
    before = site.refreshes()
    page.driver.execute_script("setInterval(() => { window.ticks += 1; }, 1000)")
    until(lambda: page.ask("window.ticks") >= 8, within=90.0, what="more than one pause to have passed")
    assert site.refreshes() <= before + 1  # one may have been under way
    seen = site.refreshes()
    page.driver.execute_script(f"const arguments_ = arguments; {hide}", False)
    until(lambda: site.refreshes() > seen, within=60.0, what="a refresh")


def test_it_fits_a_phone(with_scripts: Browser, site: Site, shop: Hardening, session: str) -> None:
    """At 360 pixels the page is not wider than the screen, whatever names there are; what is wide scrolls by itself."""
    long = "a-very-long-name-of-a-queue-that-somebody-has-made-up-" * 3
    record = WorkerRecord(name=f"w1@{long}", queues=(long, "mail"), missing=(long,), deaf=90.0)
    WorkerStore(shop.redis, Keys(shop.prefix)).tell("one", record)
    shop.dead_letters.put(letter(queue=long))
    try:
        with_scripts.size(360, 740, phone=True)
        page = opened(with_scripts, site, session)
        assert "problems" in page.ask("document.querySelector('section[data-overview]').dataset.overview")
        assert page.ask("document.querySelector('#overview').scrollWidth") <= 360
        assert page.ask("document.documentElement.scrollWidth") <= 360
    finally:
        with_scripts.size(1200, 900)


def test_it_works_without_scripts(start_browser: StartBrowser, site: Site, shop: Hardening, session: str) -> None:
    """Everything is there, and the link reads again."""
    page = opened(start_browser(javascript=False), site, session)
    shop.dead_letters.put(letter(queue="mail"))
    page.driver.find_element("link text", "Refresh").click()
    until(
        lambda: "more dead letters in 15m: 1" in page.driver.page_source, within=60.0, what="the page to be read again"
    )
    assert site.refreshes() == 0
