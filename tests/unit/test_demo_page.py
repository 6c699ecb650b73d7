"""The demo's page without a demo: what it shows, what it escapes, and whose counts it adds up."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from celery_hardened.demo.page.counts import Counts, Scrape
from celery_hardened.demo.page.live import LivePage
from celery_hardened.demo.page.numbers import LeaderRow, LetterRow, Numbers, ProcessRow, QueueRow, TaskRow
from celery_hardened.demo.page.render import main, page
from celery_hardened.metrics import catalogue
from celery_hardened.metrics.address import Address
from celery_hardened.metrics.registry import Registry
from celery_hardened.metrics.render import Page

EVIL = "<img src=x onerror=alert(1)>&\"'$main</main><script>alert(2)</script>"

FULL = Numbers(
    elapsed=12.3,
    scene=EVIL,
    sent=7,
    queues=(QueueRow(EVIL, 3, 1.25), QueueRow("idle", 0, 0.0)),
    delayed=2,
    unacked=None,
    tasks=(TaskRow(EVIL, {"success": 4, EVIL: 1}), TaskRow("b", {"failure": 2, "retry": 1, "success": 1})),
    letters={(EVIL, EVIL): 5, ("", "unknown_task"): 1},
    latest=(LetterRow(1.0, EVIL, EVIL, EVIL, EVIL * 10),),
    leader=LeaderRow(EVIL, 3, 10.0, 4.5),
    processes=(ProcessRow(EVIL, EVIL, 1, EVIL, EVIL, 1, 2, 3),),
)


class Tags(HTMLParser):
    """What a browser would find."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("numbers", [Numbers(), FULL], ids=["empty", "full"])
def test_nothing_that_a_task_wrote_is_markup(numbers: Numbers) -> None:
    """Each text is shown as it is; tags are closed in order, and the only script is the page's own."""
    tags = Tags(page(numbers))
    assert tags.open == []
    assert tags.found.count("script") == 1
    assert tags.found.count("main") == 1
    assert "img" not in tags.found
    assert {name for name in tags.attributes if name.startswith("on")} == set()


def test_the_policy_knows_the_pages_own_script_and_style() -> None:
    """And nothing else may run, be loaded or be asked."""
    text = page(FULL)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy.startswith("default-src 'none';")
    for kind in ("script", "style"):
        (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "innerHTML" not in text
    assert re.findall(r"https?://", text) == []


def test_numbers_are_shown() -> None:
    text = main(FULL)
    shown = dict(re.findall(r'data-count="?(\w+)"?>([^<]*)<', text))
    assert shown == {
        "sent": "7",
        "succeeded": "5",
        "retried": "1",
        "letters": "6",
        "waiting": "3",
        "delayed": "2",
        "unacked": "–",  # noqa: RUF001
        "leader": shown["leader"],
        "term": "3",
    }
    assert "<td>3</td><td>1.2 s</td>" in text
    assert "<td>0</td><td>–</td>" in text  # noqa: RUF001
    of_b = re.findall(r'data-outcome="(\w+)"', text.partition('data-task="b"')[2])
    assert of_b == ["success", "retry", "failure"], "good ones first"


def scrape(**outcomes: int) -> Scrape:
    """What a worker says that counted these."""
    registry = Registry()
    registry.zero(catalogue.TASKS, [("shop.ship", "shop", "retry")])
    for outcome, count in outcomes.items():
        registry.inc(catalogue.TASKS, ("shop.ship", "shop", outcome), count)
    registry.set(catalogue.WORKER_ACTIVE, ("shop",), 2)
    return Scrape(Page(registry).text(openmetrics=False).decode())


def test_counts_outlive_the_process_that_counted() -> None:
    """A worker's last word is kept, another process of its name adds to it, and zeros are not shown."""
    counts = Counts()
    counts.take("w1-of-v1", scrape(success=2))
    counts.take("w1-of-v1", scrape(success=3, failure=1))
    counts.take("w1-of-v2", scrape(success=1))
    assert counts.outcomes() == {"shop.ship": {"success": 4, "failure": 1}}
    assert scrape().sum(catalogue.WORKER_ACTIVE) == 2
    with pytest.raises(ValueError, match="html"):
        Scrape("<html>")


def test_a_look_that_fails_leaves_the_last_numbers() -> None:
    """The broker of a demo is stopped at its end: the page goes on with what it knew, and ends when it is told."""

    class Looks:
        answers = iter([FULL])

        def now(self) -> Numbers:
            found = next(self.answers, None)
            if found is None:
                raise ConnectionError("gone")
            return found

        def close(self) -> None: ...

    live = LivePage(Looks(), Address("127.0.0.1", 0))  # type: ignore[arg-type]
    live.start()
    try:
        assert live.look() in (FULL, live.look())
        assert live.look() is FULL
        assert live.running
    finally:
        live.stop()
    assert not live.running
    live.stop()
