"""The demo's page in a real browser: its numbers change as things happen, and are those of the demo's own books."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from urllib.request import ProxyHandler, build_opener

import pytest
from selenium.common.exceptions import WebDriverException

from celery_hardened.demo.scenes import SCENES
from tests.fixtures.browser import StartBrowser
from tests.support.browser import Browser
from tests.support.demo_page import PLAYED, Demo
from tests.support.until import until

# One demo for all of them.
pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("demo page")]

#: All that is to be seen at one moment, in one step: a page that renews itself is not read in two halves.
READ = """Object.fromEntries([
  ["scene", document.querySelector("[data-scene]").textContent],
  ...[...document.querySelectorAll(".tiles [data-count]")].map(e => [e.dataset.count, +e.textContent])
])"""

TASKS = """Object.fromEntries([...document.querySelectorAll("[data-task]")].map(task => [task.dataset.task,
  Object.fromEntries([...task.querySelectorAll("[data-outcome]")].map(
    chip => [chip.dataset.outcome, +chip.querySelector("b").textContent]))]))"""


@pytest.fixture(scope="module")
def browser(start_browser: StartBrowser) -> Browser:
    return start_browser()


@pytest.fixture(scope="module")
def demo(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """Begun when there is a browser to look at it: the first scenes are short."""
    demo = Demo(tmp_path_factory.mktemp("demo"))
    yield demo
    demo.proc.kill_group()


@pytest.fixture(scope="module")
def seen(demo: Demo, browser: Browser) -> list[dict[str, object]]:
    """What the page showed from the first scene to the last: opened once, never loaded again."""
    browser.open(demo.url)
    browser.ask("window.opened = true")
    shown: list[dict[str, object]] = []

    def look() -> bool:
        now = browser.ask(READ)
        if not shown or shown[-1] != now:
            shown.append(now)
        return demo.over and now["scene"] == "the last scene is over" and now.items() >= demo.books.items()

    until(look, within=PLAYED, what="the page to show the end of the last scene", every=0.2)
    assert browser.ask("window.opened") is True
    return shown


def test_numbers_change_while_things_happen(seen: list[dict[str, object]], browser: Browser) -> None:
    """A person who opens the page and looks at it sees one scene after the other, and counts that only rise."""
    scenes = [str(one["scene"]) for one in seen]
    assert len({scene.title for scene in SCENES} & set(scenes)) >= 4
    for count, least in (("sent", 4), ("succeeded", 4), ("retried", 2)):
        values = [one[count] for one in seen]
        assert values == sorted(values), count
        assert len(set(values)) >= least, count


def test_the_last_numbers_are_those_of_the_books(demo: Demo, seen: list[dict[str, object]], browser: Browser) -> None:
    """What workers counted is what the demo's producer sent and its processes wrote down.

    The workers of the first release are gone by then; what they counted is not.
    """
    last = browser.ask(READ)
    assert {name: last[name] for name in demo.books} == demo.books
    assert last["retried"] == demo.noted("retrying").total()

    tasks = browser.ask(TASKS)
    assert {task: ends["success"] for task, ends in tasks.items() if "success" in ends} == demo.noted("succeeded")
    assert tasks["shop.charge"] == {"success": 4, "retry": 8, "failure": 1, "malformed": 2}
    assert tasks["shop.resize"] == {"success": 11, "worker_lost": 2, "poison": 1}
    assert tasks["shop.archive"] == {"unknown": 1, "success": 1}
    assert tasks["shop.ship"] == {"success": 5, "failure": 3}

    letters = browser.texts(".letters tbody tr")
    assert sorted(letters) == [f"shop {why} 1" for why in ("malformed", "permanent", "poison", "undecodable")]
    assert "bomb.png" in " ".join(browser.texts(".letters .rows li"))


def test_processes_and_the_leader_are_shown(demo: Demo, seen: list[dict[str, object]], browser: Browser) -> None:
    """Who runs, how they fare by their own probes, and which beat leads."""
    until(lambda: browser.texts("[data-process] .chip") == ["ready"] * 3, within=30, what="all to be ready", every=0.2)
    assert browser.ask("[...document.querySelectorAll('[data-process]')].map(e => e.dataset.process)") == [
        "w1",
        "w2",
        "beat",
    ]
    assert browser.text("[data-count=term]") == "1"
    assert browser.text("[data-count=leader]") in browser.text("[data-process=beat]")


def test_the_console_stays_empty(seen: list[dict[str, object]], browser: Browser) -> None:
    """No error, no warning, and nothing that the page's own policy had to refuse."""
    assert browser.complaints() == []


def test_without_scripts_it_is_the_same_page(
    demo: Demo, seen: list[dict[str, object]], start_browser: StartBrowser
) -> None:
    """Rendered by the server, and loaded again by the browser itself."""
    plain = start_browser(javascript=False)
    plain.open(demo.url)
    assert plain.text("[data-count=succeeded]") == str(demo.books["succeeded"])
    first = plain.texts(".now")

    def is_renewed() -> bool:
        try:
            now = plain.texts(".now")
        except WebDriverException:  # asked while the one page went and the other came
            return False
        return bool(now) and now != first

    until(is_renewed, within=30, what="the page to be loaded again", every=0.2)
    assert plain.complaints() == []


@pytest.mark.parametrize("width", [320, 390, 768, 1400])
def test_it_fits_on_every_screen(width: int, seen: list[dict[str, object]], browser: Browser) -> None:
    """Nothing is cut off, and nothing has to be scrolled sideways."""
    browser.size(width, 800, phone=width < 500)
    until(lambda: browser.ask("innerWidth") == width, within=30, what="the page to be as wide as the screen")
    assert browser.ask("document.documentElement.scrollWidth") <= width
    beyond = "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth).length"
    assert browser.ask(beyond) == 0


def test_light_and_dark(seen: list[dict[str, object]], browser: Browser) -> None:
    """As the user's system says, and readable in both: text on its ground has the contrast that WCAG asks for (4.5)."""
    grounds = {}
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        grounds[scheme] = browser.ask("getComputedStyle(document.body).backgroundColor")
        assert browser.ask(CONTRAST) >= 4.5, scheme
    assert luminance(grounds["dark"]) < 40 < 200 < luminance(grounds["light"])


def luminance(color: str) -> float:
    return sum(int(part) for part in color.strip("rgb()").split(",")[:3]) / 3


#: The lowest contrast of any text in the page with what is behind it.
CONTRAST = """(() => {
  const parts = color => color.match(/[\\d.]+/g).map(Number);
  const light = color => {
    const [r, g, b] = parts(color).slice(0, 3).map(v => v / 255)
      .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = e => {
    for (; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if (!(parts(color).length === 4 && parts(color)[3] === 0)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const told = [...document.querySelectorAll("body *")].filter(
    e => e.offsetParent && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()));
  return Math.min(...told.map(e => {
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
    return (a + .05) / (b + .05);
  }));
})()"""


def test_the_end_is_the_usual_one(demo: Demo, seen: list[dict[str, object]], start_browser: StartBrowser) -> None:
    """Ctrl-C ends it: all is summed up, nothing is left, exit code 0; the page says that it has ended.

    The demo of the other tests is ended here if they are done, so this one comes last.
    """
    watcher = start_browser()
    watcher.open(demo.url)
    demo.proc.signal(signal.SIGINT)
    assert demo.proc.wait(within=60) == 0, demo.proc.log()
    assert "12 of 12 lines are true" in demo.proc.log()
    with pytest.raises(OSError, match="refused"):
        build_opener(ProxyHandler({})).open(demo.url, timeout=5)
    until(
        lambda: watcher.ask("!document.getElementById('ended').hidden"),
        within=30,
        what="the page to say so",
        every=0.2,
    )
    assert watcher.ask(READ)["succeeded"] == demo.books["succeeded"], "its last numbers stay"
