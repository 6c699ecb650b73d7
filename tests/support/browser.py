"""A real browser without a window: the system's Chromium, in a profile of its own, on a leash."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

#: Seconds that a page, or a script on it, may take.
PATIENCE = 60

#: Nothing is fetched, and nobody is told of us.
os.environ.update(SE_OFFLINE="true", SE_AVOID_STATS="true")

#: Whatever proxy is set in the environment does not lead to the driver on our own machine.
os.environ["no_proxy"] = ",".join(
    [*filter(None, [os.environ.get("no_proxy", os.environ.get("NO_PROXY"))]), "localhost", "127.0.0.1"]
)


def programs() -> tuple[str, str] | None:
    """Browser and driver of the system; ``None`` if one is not installed."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """
    One browser with one tab.

    Args:
        directory: For its profile.

        javascript: Without it scripts do not run, as where a user has switched them off.
    """

    def __init__(self, directory: Path, *, javascript: bool = True) -> None:
        found = programs()
        assert found is not None, "ask programs() first"
        options = webdriver.ChromeOptions()
        options.binary_location = found[0]
        for argument in (
            "--headless=new",
            "--no-sandbox",  # root may not have one
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-default-apps",
            "--disable-sync",
            "--no-proxy-server",
            "--force-device-scale-factor=1",
            f"--user-data-dir={directory / 'profile'}",
        ):
            options.add_argument(argument)
        if not javascript:
            options.add_experimental_option("prefs", {"profile.default_content_setting_values.javascript": 2})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        directory.mkdir(parents=True, exist_ok=True)
        service = Service(executable_path=found[1], log_output=str(directory / "driver.log"))
        self.driver = webdriver.Chrome(options=options, service=service)
        self.driver.set_page_load_timeout(PATIENCE)
        self.driver.set_script_timeout(PATIENCE)
        self._processes = [psutil.Process(service.process.pid)]
        self._processes += self._processes[0].children(recursive=True)

    def open(self, url: str) -> None:
        """Load it, and wait until it is there."""
        self.driver.get(url)

    # --- what is to be seen ---------------------------------------------------------------------

    def texts(self, css: str) -> list[str]:
        """What stands in the elements that *css* selects, all at one moment: a page may replace them at any."""
        script = (
            "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText.replace(/\\s+/g, ' ').trim())"
        )
        found: list[str] = self.driver.execute_script(script, css)
        return found

    def text(self, css: str) -> str:
        """What stands in the one element."""
        (text,) = self.texts(css)
        return text

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        return self.driver.execute_script(f"return {expression}")

    def complaints(self) -> list[str]:
        """What the console has got since the last time: errors and warnings, violated policies among them."""
        entries = self.driver.get_log("browser")
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    # --- how it is looked at -----------------------------------------------------------------------

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """Of the part that shows the page."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """``dark`` or ``light``, as the user's system says."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def picture(self, path: Path) -> None:
        """A screenshot, as PNG."""
        assert self.driver.save_screenshot(str(path))

    # --- the end -------------------------------------------------------------------------------

    def quit(self) -> None:
        """End it, and whatever of it is left."""
        with contextlib.suppress(Exception):
            self.driver.quit()
        for process in self._left():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _left(self) -> Iterator[psutil.Process]:
        # By id and time of start: an id that another process has by now is not ours.
        yield from (process for process in self._processes if process.is_running())
