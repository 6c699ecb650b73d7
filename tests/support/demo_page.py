"""The demo with its page, for tests that look at it; and the picture of it that the documentation shows:

::

    ./dev shell -m tests.support.demo_page docs/_static/demo-page.png
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.proc import Proc
from tests.support.until import until

#: Seconds for all scenes; an idle machine needs twenty.
PLAYED = 150


class Demo:
    """`./dev demo --page`, started. To be ended with `Proc.kill_group` of ``proc``."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._place = directory / "place"
        self._place.mkdir()
        env = {"TMPDIR": str(self._place), "PYTHONIOENCODING": "utf-8"}
        argv = [sys.executable, "-m", "celery_hardened.demo", "--page", *arguments]
        self.proc = Proc("demo", argv, cwd=directory, env=env)
        self.proc.start()

    @property
    def url(self) -> str:
        """Of the page, as it is printed."""
        (found,) = until(
            lambda: re.findall(r"its numbers, live: (\S+)", self.proc.log()), within=60, what="the page's address"
        )
        return str(found)

    @property
    def over(self) -> bool:
        """The last scene was played, and everything goes on."""
        assert self.proc.running, self.proc.log()
        return "goes on until Ctrl-C" in self.proc.log()

    @property
    def books(self) -> Mapping[str, int]:
        """The demo's own, from its last line: messages sent, successes, dead letters, left over."""
        found = re.findall(r"(\d+) messages = (\d+) successes \+ (\d+) dead letters, (\d+) left", self.proc.log())
        return dict(zip(("sent", "succeeded", "letters", "waiting"), map(int, found[-1]), strict=True))

    def noted(self, event: str) -> Counter[str]:
        """How often the shop's processes wrote *event* down themselves, by task."""
        (record,) = self._place.glob("celery-hardened-demo-*/record.jsonl")
        lines: list[dict[str, Any]] = [json.loads(line) for line in record.read_text().splitlines()]
        return Counter(line.get("task") or "" for line in lines if line["event"] == event)


def take_picture(path: Path) -> None:
    """Play the demo, and take a picture of its page when the last scene is over."""
    from tests.support.browser import Browser

    with tempfile.TemporaryDirectory() as folder:
        demo = Demo(Path(folder))
        browser = Browser(Path(folder) / "browser")
        try:
            until(lambda: demo.over, within=PLAYED, what="the last scene")
            browser.size(1100, 600)
            browser.open(demo.url)
            until(lambda: browser.text("[data-scene]") == "the last scene is over", within=30, what="the last numbers")
            browser.size(1100, int(browser.ask("document.documentElement.scrollHeight")))
            browser.picture(path)
        finally:
            browser.quit()
            demo.proc.kill_group()


if __name__ == "__main__":
    take_picture(Path(sys.argv[1]))
