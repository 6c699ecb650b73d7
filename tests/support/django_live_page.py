"""How a person gets around in the admin: by what is written on the page, not by ids and classes."""

from __future__ import annotations

from typing import Any

from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from tests.support.browser import Browser
from tests.support.django_live_rows import ADA
from tests.support.until import until

#: The control whose label says this, or whose ``aria-label`` does.
_LABELLED = """
const said = e => {
  const copy = e.cloneNode(true);
  copy.querySelectorAll('select').forEach(one => one.remove());
  return copy.textContent.replace(/\\s+/g, ' ').trim().replace(/:$/, '');
};
const wanted = arguments[0];
const labels = [...document.querySelectorAll('label')].filter(e => said(e) === wanted && e.control);
return labels.length ? labels[0].control : [...document.querySelectorAll('[aria-label]')].find(
  e => e.getAttribute('aria-label') === wanted) || null;
"""

#: The link or the button that says this, all of it or its beginning; in capitals it may be shown by a style sheet.
_SAYING = """
const said = e => (e.value && e.tagName === 'INPUT' ? e.value : e.textContent || '').replace(/\\s+/g, ' ').trim();
const found = [...document.querySelectorAll(arguments[1])].filter(e => e.getClientRects().length);
return found.find(e => said(e) === arguments[0]) || found.find(e => said(e).startsWith(arguments[0])) || null;
"""

LINK, BUTTON = "a[href]", "button, input[type=submit]"


class Page:
    """The admin of *url* in *browser*."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.browser = browser
        self.driver = browser.driver
        self.url = url

    # --- getting somewhere ----------------------------------------------------------------------------------

    def open(self, path: str) -> None:
        self.browser.open(self.url + path)

    def log_in(self, name: str = ADA[0], password: str = ADA[1]) -> None:
        self.open("/admin/login/?next=/admin/")
        self.fill("Username", name)
        self.fill("Password", password)
        self.press("Log in")
        assert self.path == "/admin/", self.text

    def follow(self, words: str) -> None:
        """Click the link that says *words*, and wait for the page it leads to."""
        self.leave_by(self._saying(words, LINK).click)

    def press(self, words: str) -> None:
        """Click the button that says *words*, and wait for the page it leads to."""
        self.leave_by(self._saying(words, BUTTON).click)

    def leave_by(self, act: Any) -> None:
        """Do *act*, and wait until another page is there."""
        before = self.browser.ask("performance.timeOrigin")
        act()

        def is_gone() -> bool:
            try:
                now = self.browser.ask("document.readyState === 'complete' && performance.timeOrigin")
            except WebDriverException:  # asked while the one page went and the other came
                return False
            return bool(now) and now != before

        until(is_gone, within=60, what="another page")

    # --- forms ----------------------------------------------------------------------------------------------

    def field(self, label: str) -> WebElement:
        """The control with that label."""
        found: Any = self.driver.execute_script(_LABELLED, label)
        assert isinstance(found, WebElement), f"nothing is labelled {label!r} in: {self.text}"
        return found

    def fill(self, label: str, text: str) -> None:
        control = self.field(label)
        if not control.is_displayed():
            self.unfold(control)
        control.clear()
        control.send_keys(text)

    def set_moment(self, label: str, day: str, time: str) -> None:
        """Day and time, in ISO 8601, as the browser's own pickers leave them."""
        for part, value in (("day", day), ("time", time)):
            self.driver.execute_script("arguments[0].value = arguments[1]", self.field(f"{label}, {part}"), value)

    def unfold(self, control: WebElement) -> None:
        """Open the section that hides it, as a person does."""
        control.find_element(By.XPATH, "ancestor::details/summary").click()

    def choose(self, label: str, option: str) -> None:
        """In a list of options, the one that says *option*."""
        Select(self.field(label)).select_by_visible_text(option)

    def tick(self, label: str, on: bool = True) -> None:
        control = self.field(label)
        if control.is_selected() is not on:
            control.click()

    # --- the list of periodic tasks -----------------------------------------------------------------------

    def do(self, action: str, *names: str) -> None:
        """Tick the rows of these names in the list of periodic tasks, choose *action* and go."""
        self.open("/admin/django_celery_beat/periodictask/")
        for name in names:
            self.row(name).find_element(By.CSS_SELECTOR, "input.action-select").click()
        self.choose("Action", action)
        self.press("Go")

    def row(self, name: str) -> WebElement:
        """The row of a list whose link says *name*."""
        rows = self.driver.find_elements(By.CSS_SELECTOR, "#result_list tbody tr")
        (found,) = [row for row in rows if row.find_element(By.CSS_SELECTOR, "th a").text == name]
        return found

    def title_of(self, name: str) -> str:
        """What Django calls that row in the label of its checkbox."""
        box = self.row(name).find_element(By.CSS_SELECTOR, "input.action-select")
        return str(box.get_attribute("aria-label")).removeprefix("Select this object for an action - ")

    def column(self, name: str, column: str) -> str:
        """What that row says in *column*, by its class."""
        return str(self.row(name).find_element(By.CSS_SELECTOR, f".field-{column}").text)

    # --- what is to be seen ------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """All that can be read on the page."""
        return self.browser.text("body")

    @property
    def path(self) -> str:
        return str(self.browser.ask("location.pathname"))

    @property
    def said(self) -> list[str]:
        """The messages above the page."""
        return self.browser.texts(".messagelist li")

    def _saying(self, words: str, css: str) -> WebElement:
        found: Any = self.driver.execute_script(_SAYING, words, css)
        assert isinstance(found, WebElement), f"nothing to click says {words!r} in: {self.text}"
        return found
