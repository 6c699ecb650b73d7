"""Every page of ours in the admin: by keyboard, by rules of accessibility, on a phone, in the dark, without scripts."""

from __future__ import annotations

from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.browser.admin_pages import LIST, PAGES, SCHEDULES, make_history
from tests.browser.conftest import StartSite
from tests.fixtures.browser import StartBrowser
from tests.support.axe import Violation, violations
from tests.support.django_live import LiveSite
from tests.support.django_live_page import Page
from tests.support.until import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("admin pages"),
]

#: What Django's own pages break by themselves: rule, part of the page, and a plain page that breaks it.
KNOWN = {
    "breadcrumbs of a thing with a long name: links among text, told by colour alone": (
        "link-in-text-block", ".breadcrumbs", "/admin/auth/group/1/change/",
    ),
    "the number of results beside the search box: a link among text, told by colour alone": (
        "link-in-text-block", "#changelist-search .small", "/admin/auth/user/?q=ada",
    ),
}  # fmt: skip

each_page = pytest.mark.parametrize("name", PAGES)


@pytest.fixture(scope="module")
def site(start_site: StartSite) -> LiveSite:
    return start_site(beats=1, letters="django")


@pytest.fixture(scope="module")
def visitor(site: LiveSite, start_browser: StartBrowser) -> Page:
    """Logged in, in a shop in which something has failed."""
    page = Page(start_browser(), site.url)
    page.log_in()
    make_history(page)
    page.browser.complaints()
    return page


@pytest.fixture
def page(visitor: Page) -> Page:
    look(visitor, 1280, "light")
    return visitor


def look(page: Page, width: int, scheme: str) -> None:
    page.browser.size(width, 900, phone=width < 500)
    page.browser.prefer(scheme)


@each_page
def test_axe_finds_nothing_serious(page: Page, name: str) -> None:
    """No serious or critical rule is broken, light and dark, wide and on a phone; nothing is scrolled sideways there.

    The console is empty, though the site's policy refuses whatever stands inline.
    """
    PAGES[name](page)
    assert page.browser.complaints() == []
    found: list[tuple[int, str, Violation]] = []
    wide: dict[int, list[str]] = {}
    for width in (1280, 390):
        for scheme in ("light", "dark"):
            look(page, width, scheme)
            broken = violations(page.browser, known=[(rule, css) for rule, css, _ in KNOWN.values()])
            found += [(width, scheme, one) for one in broken]
        if page.browser.ask("document.documentElement.scrollWidth") > width:
            wide[width] = page.browser.ask(WIDE)
    page.browser.complaints()  # axe's own style sheets
    assert not found, "\n".join(map(str, found))
    assert not wide, wide


#: What sticks out to the right, as far as nothing around it scrolls.
WIDE = """[...document.querySelectorAll('body *')].filter(
  e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1
    && !e.closest('.scroll, .results, pre')
).map(e => `${e.tagName}.${e.className}: ${e.innerText?.slice(0, 60)}`).slice(0, 9)"""


@pytest.mark.parametrize("reason", KNOWN)
def test_what_is_left_out_is_djangos_own(page: Page, reason: str) -> None:
    """A page without anything of ours breaks the same rule in the same part: else it would be ours to mend."""
    rule, css, plain = KNOWN[reason]
    page.open(plain)
    broken: set[str] = set()
    for width in (1280, 390):
        look(page, width, "light")
        with_it, without = violations(page.browser), violations(page.browser, known=[(rule, css)])
        broken |= {one.rule for one in with_it} - {one.rule for one in without}
    page.browser.complaints()
    assert rule in broken


# --- by keyboard ------------------------------------------------------------------------------------------------

#: Number all that can be reached, and keep how each looks without the focus. Answers the numbers with what they say.
#: What a page would renew by itself meanwhile has no number: it stays as it is.
STOPS = """
for (let timer = setTimeout(() => {}, 0); timer > 0; timer -= 1) { clearTimeout(timer); }
const css = 'a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex="0"]';
const look = e => { const s = getComputedStyle(e); return [s.outlineStyle, s.outlineWidth, s.boxShadow, s.borderColor,
  s.backgroundColor, s.color, s.textDecorationLine].join(); };
window.look = look;
document.activeElement.blur();
return [...document.querySelectorAll(css)].filter(e => e.checkVisibility({visibilityProperty: true}) && !e.disabled
  && e.getClientRects().length).map((e, i) => { e.dataset.stop = i; e.before_ = look(e);
  return [i, (e.getAttribute('aria-label') || e.innerText || e.name || e.value || e.id).trim().slice(0, 60)]; });
"""

#: Where the focus is: the number, and whether it can be seen.
FOCUS = """
const e = document.activeElement;
if (!e || e.dataset.stop === undefined) return null;
// Of a date or a time the browser marks the part that is typed in next.
return [Number(e.dataset.stop), look(e) !== e.before_ || ['date', 'time'].includes(e.type)];
"""


@each_page
def test_every_control_is_reached_by_tab(page: Page, name: str) -> None:
    """Tab comes to each link, button and field, none keeps it, and where the focus is can be seen."""
    PAGES[name](page)
    stops: dict[int, str] = {number: said for number, said in page.driver.execute_script(STOPS)}
    assert stops
    reached: dict[int, bool] = {}
    for _ in range(2 * len(stops) + 20):
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        at: Any = page.driver.execute_script(FOCUS)
        if at is not None:
            if at[0] in reached and len(reached) >= len(stops):
                break
            reached[at[0]] = bool(at[1])
    assert [stops[one] for one in stops if one not in reached] == []
    assert [stops[one] for one, seen in reached.items() if not seen] == []
    page.browser.complaints()


class Keyboard:
    """A person without a mouse."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def press(self, *keys: str) -> None:
        ActionChains(self.page.driver).send_keys(*keys).perform()

    def tab_to(self, words: str) -> None:
        """Press Tab until what has the focus says *words*, or is labelled so."""
        for _ in range(200):
            self.press(Keys.TAB)
            if self.page.driver.execute_script(SAYS) == words:
                return
        raise AssertionError(f"Tab does not come to {words!r}")

    def choose(self, words: str) -> None:
        """Type *words* in the list with the focus; once more if a pause between two keys made two words of them."""

        def is_chosen() -> bool:
            self.press(words)
            chosen = self.page.driver.execute_script("return document.activeElement.selectedOptions[0].text")
            return str(chosen).startswith(words)

        until(is_chosen, within=30, what=f"{words} to be chosen", every=2.0)

    def leave(self, *keys: str) -> None:
        """Press *keys*, which lead to another page."""
        self.page.leave_by(lambda: self.press(*keys))


#: What the control with the focus is called.
SAYS = """
const e = document.activeElement;
const label = e.labels?.length ? e.labels[0].cloneNode(true) : null;
label?.querySelectorAll('select').forEach(one => one.remove());
return (e.getAttribute('aria-label') || label?.textContent || (e.tagName === 'INPUT' ? e.value : e.innerText) || '')
  .replace(/\\s+/g, ' ').trim().replace(/:$/, '');
"""


def test_a_pause_by_keyboard(page: Page) -> None:
    """From the list to the pause and back to a resumption, without a mouse."""
    keyboard = Keyboard(page)
    for action, name in (("Pause", "tidy up"), ("Resume", "tidy up")):
        page.open(SCHEDULES)
        keyboard.tab_to("Action")
        keyboard.choose(action)
        keyboard.tab_to(f"Select this object for an action - {page.title_of(name)}")
        keyboard.press(Keys.SPACE)
        page.driver.execute_script("document.activeElement.blur()")
        keyboard.tab_to("Go")
        keyboard.leave(Keys.ENTER)
        if action == "Pause":
            keyboard.tab_to("Reason")
            keyboard.press("by hand")
            keyboard.tab_to("Pause")
            keyboard.leave(Keys.SPACE)
        assert len(page.said) == 1
        assert page.said[0].startswith("Tidy up: ")
    assert page.column("tidy up", "state") == "ok"


def test_a_redrive_by_keyboard(site: LiveSite, page: Page) -> None:
    """From the overview of dead letters to a letter that is sent again, without a mouse."""
    keyboard = Keyboard(page)
    page.open(f"{LIST}?task=shop.resize")
    keyboard.tab_to(page.driver.execute_script("return document.querySelector('[name=id]').ariaLabel"))
    keyboard.press(Keys.SPACE)
    keyboard.tab_to("Redrive the chosen…")
    keyboard.leave(Keys.ENTER)
    keyboard.tab_to("Reason")
    keyboard.press("once more")
    keyboard.tab_to("Redrive")
    keyboard.leave(Keys.ENTER)
    # It fails again, as no picture of that kind can be resized, and so there is another letter of it.
    page.open(f"{LIST}?task=shop.resize&state=redriven")
    until(lambda: "1 letter matches" in page.text or page.driver.refresh(), within=30, what="the letter to be sent")


# --- without scripts ----------------------------------------------------------------------------------------------


@pytest.fixture
def plain(site: LiveSite, visitor: Page, start_browser: StartBrowser) -> Page:
    """The same shop, where scripts are switched off."""
    page = Page(start_browser(javascript=False), site.url)
    page.open("/admin/login/")
    page.log_in()
    return page


def test_a_pause_and_a_redrive_without_scripts(site: LiveSite, plain: Page) -> None:
    """Whatever can be done can be done where scripts do not run."""
    plain.do("Pause selected tasks…", "send reminders")
    plain.fill("Reason", "holidays")
    plain.press("Pause")
    assert plain.said == ["Send reminders: Paused until it is resumed: holidays"]
    plain.do("Resume selected tasks", "send reminders")
    assert plain.said == ["Send reminders: Resumed."]

    plain.open("/shop/")
    plain.press("Mend the gateway")
    plain.open(f"{LIST}?task=shop.charge")
    plain.press("Redrive all that match…")
    plain.fill("Reason", "the gateway answers again")
    plain.press("Redrive")
    until(lambda: len(site.notes("paid")) >= 7, within=60, what="the orders to be paid")
    until(lambda: site.is_idle, within=30, what="nothing to be under way")
    assert sorted(site.notes("paid")) == [str(order) for order in range(1001, 1008)]
    assert plain.browser.complaints() == []


# --- what a page costs ----------------------------------------------------------------------------------------------

#: Pages that are read, and hold more the more there is.
READ = ("schedules", "schedule", "dead-letters", "dead-letters-list", "dead-letter", "bulk-actions", "runs", "overview")

STATEMENTS = """
const done = arguments[0];
fetch(location.href).then(answer => done(Number(answer.headers.get("X-Statements"))), problem => done(String(problem)));
"""


def test_statements_do_not_grow_with_what_is_there(site: LiveSite, page: Page) -> None:
    """A page takes the same number of statements for few schedules and letters as for many."""

    def costs() -> dict[str, int]:
        found = {}
        for name in READ:
            PAGES[name](page)
            found[name] = page.driver.execute_async_script(STATEMENTS)
        return found

    def fail(orders: range) -> None:
        page.open("/shop/")
        page.press("Break the gateway")
        page.fill("Orders", " ".join(map(str, orders)))
        page.press("Order")
        page.open(f"{LIST}?task=shop.charge")
        found = "document.querySelectorAll('#content tbody tr').length"
        until(
            lambda: page.browser.ask(found) >= len(orders) or page.driver.refresh(), within=60, what="letters of them"
        )

    fail(range(2001, 2004))
    few = costs()
    site.run("-m", "tests.support.django_live_rows", "more")
    fail(range(2011, 2051))
    many = costs()
    assert {name: (few[name], many[name]) for name in READ if many[name] > few[name]} == {}
    assert max(many.values()) <= 40, many
