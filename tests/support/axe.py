"""axe-core on a page: what of it people with an impairment cannot use, by the rules of WCAG 2.1 A and AA."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from tests.support.browser import Browser

_RUN = """
const [done, left] = [arguments[arguments.length - 1], arguments[0]];
const rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"];
const run = {elementRef: true, resultTypes: ["violations"], runOnly: rules};
// Colours that are still on their way from one scheme to the other are nobody's choice.
const still = Promise.all(document.getAnimations().map(one => one.finished.catch(() => null)));
const isLeft = (rule, node) => left.some(([name, css]) => name === rule.id && node.element.closest(css));
still.then(() => axe.run(document, run)).then(
  found => done(found.violations.flatMap(rule => rule.nodes.filter(node => !isLeft(rule, node)).map(
    node => [rule.id, node.impact || rule.impact, node.target.flat().join(" "), node.html.slice(0, 300),
             (node.failureSummary || "").replace(/\\s+/g, " ")]))),
  problem => done([["axe", "critical", "", "", String(problem)]]));
"""


@dataclass(frozen=True, slots=True)
class Violation:
    """One element that breaks one rule."""

    rule: str
    impact: str
    where: str
    html: str
    why: str

    def __str__(self) -> str:
        return f"{self.rule} ({self.impact}) at {self.where}: {self.html} — {self.why}"


@cache
def _source() -> str:
    # Of that package only the script is used: its own code drives another kind of browser.
    return files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")


def violations(browser: Browser, *, known: Iterable[tuple[str, str]] = ()) -> list[Violation]:
    """What breaks a serious or critical rule on the page as it is shown now.

    Args:
        known: Rules, each with the CSS of the parts of a page that may break it.
    """
    if not browser.ask("typeof axe === 'object'"):
        browser.driver.execute_script(_source())
    found = browser.driver.execute_async_script(_RUN, [list(one) for one in known])
    return [one for one in (Violation(*each) for each in found) if one.impact in ("serious", "critical")]
