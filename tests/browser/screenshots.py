"""Pictures of our pages in the admin, for the documentation: ``python -m tests.browser.screenshots``.

Everything is real: a site, a worker, two beats, dead letters of tasks that failed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.browser.admin_pages import PAGES, make_history
from tests.support.browser import Browser
from tests.support.django_live import LiveSite
from tests.support.django_live_page import Page
from tests.support.redis_server import RedisServer

FOLDER = Path(__file__).parents[2] / "docs" / "_static"

WIDTH = 1280

#: Page → what stands at the top of the picture, and its height at most.
PICTURES: dict[str, tuple[str, int]] = {
    "schedules": ("#container", 900),
    "schedule": ("#coming-slots", 960),
    "pause": ("#container", 700),
    "skip": ("#container", 700),
    "backfill-slots": ("#container", 1000),
    "dead-letters": ("#container", 900),
    "dead-letters-list": ("#container", 900),
    "dead-letter": ("#container", 1100),
    "edit-arguments": ("#container", 800),
    "redrive": ("#container", 1100),
    "bulk-action": ("#container", 800),
    "runs": ("#container", 700),
    "run": ("#container", 1000),
    "overview": ("#container", 1000),
}


def take(page: Page, folder: Path, *only: str) -> None:
    """Each picture, as ``admin-<page>.png``."""
    page.browser.prefer("light")
    page.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    for name, (top, height) in PICTURES.items():
        if only and name not in only:
            continue
        page.browser.size(WIDTH, height)
        PAGES[name](page)
        page.driver.execute_script(
            "document.activeElement.blur(); document.querySelector(arguments[0]).scrollIntoView()", top
        )
        # A short page leaves nothing empty below it.
        left = int(page.browser.ask("document.getElementById('content').getBoundingClientRect().bottom + 40"))
        page.browser.size(WIDTH, min(height, left))
        page.browser.picture(folder / f"admin-{name}.png")


def prepare(page: Page) -> None:
    """Something has run, something has failed, something is paused; the navigation is folded away."""
    page.log_in()
    make_history(page)
    page.do("Pause selected tasks…", "pay the suppliers")
    page.fill("Reason", "until the bank is back")
    page.press("Pause")
    page.field("Toggle navigation").click()


def main(folder: Path = FOLDER, *only: str) -> None:
    with tempfile.TemporaryDirectory(prefix="hardened-") as place:
        redis = RedisServer(Path(place) / "valkey")
        redis.start()
        site = LiveSite(Path(place) / "site", redis, host="shop-1")
        browser = Browser(Path(place) / "browser")
        try:
            site.start()
            page = Page(browser, site.url)
            prepare(page)
            take(page, folder, *only)
        finally:
            browser.quit()
            site.stop()
            redis.stop()


if __name__ == "__main__":
    main(FOLDER, *sys.argv[1:])
