"""``docs/reference/metrics.md`` is the catalogue, the outcomes and the caps, as the code has them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable

import pytest

from celery_hardened.metrics import catalogue, outcome, registry
from celery_hardened.metrics.family import OTHER, Family
from celery_hardened.metrics.publish_result import PUBLISH_MEANING
from celery_hardened.settings import Settings
from tests.support.pages import codes, generated, table, text_of

PAGE = "reference/metrics.md"


def headings() -> dict[str, str]:
    """The name of each family, and the heading it stands under in the source."""
    source = inspect.getsource(catalogue)
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        family = getattr(catalogue, node.target.id)
        if isinstance(family, Family):
            above = [line for line in lines[: node.lineno] if line.startswith("# --- ")]
            found[family.name] = above[-1].strip("# -")
    return found


def spelled(seconds: float) -> str:
    return f"{seconds:g}"


def metrics() -> list[str]:
    """One table for each heading of the catalogue."""
    above = headings()
    lines, last = [], ""
    for family in catalogue.ALL:
        if above[family.name] != last:
            last = above[family.name]
            subject = last.partition(":")[0]
            lines += ["", f"### {subject[0].upper()}{subject[1:]}", "", "| metric | type | labels | meaning |"]
            lines += ["|---|---|---|---|"]
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{family.name}` | {family.kind} | {labels} | {family.help} |")
    return lines[1:]


def buckets() -> list[str]:
    lines = ["| histogram | upper bounds, in seconds |", "|---|---|"]
    for family in catalogue.ALL:
        if family.buckets:
            lines.append(f"| `{family.name}` | {', '.join(spelled(bound) for bound in family.buckets)} |")
    return lines


def outcomes() -> list[str]:
    lines = ["| outcome | the work is over | 0 from the start | meaning |", "|---|---|---|---|"]
    for name, meaning in outcome.MEANING.items():
        over = "yes" if name in outcome.FINAL else ""
        zero = "yes" if name in outcome.FROM_THE_START else ""
        lines.append(f"| `{name}` | {over} | {zero} | {meaning} |")
    return lines


def caps() -> list[str]:
    lines = ["| label | values |", "|---|---|"]
    lines += [
        f"| `{label}` | {cap}" + (" (`hardened_metrics_max_tasks`) |" if label == "task" else " |")
        for label, cap in registry.CAPS.items()
    ]
    return [*lines, f"| `exception` | {registry.EXCEPTIONS_PER_TASK} for each task |"]


def results() -> list[str]:
    return ["| result | meaning |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in PUBLISH_MEANING.items())]


@pytest.mark.parametrize(
    ("name", "part"),
    [("metrics", metrics), ("buckets", buckets), ("outcomes", outcomes), ("results", results), ("caps", caps)],
)
def test_the_page_is_what_the_code_says(name: str, part: Callable[[], list[str]]) -> None:
    """If this fails, put the expected lines between the two marks of the page."""
    expected = part()
    assert generated(PAGE, name) == expected, "\n" + "\n".join(expected)


def test_every_family_stands_under_a_heading_that_says_where_it_is_served() -> None:
    """The page has a line for each heading of the catalogue, so that a reader knows whom to scrape."""
    said = {row[0] for row in table(PAGE, "Where they are served")}
    assert said == {heading.partition(":")[0] for heading in headings().values()}
    assert set(headings()) == set(catalogue.BY_NAME)


def test_the_cap_of_tasks_is_the_setting() -> None:
    """The table says 1000 for tasks: so does the setting, unless somebody changes it."""
    assert registry.CAPS["task"] == Settings().metrics_max_tasks
    assert f"`{OTHER}`" in text_of(PAGE)


def test_outcomes_that_alerts_count_as_failed_are_named() -> None:
    """A ratio of failures is over these, and the page says which."""
    _, _, rest = text_of(PAGE).partition("count as failed: ")
    assert set(codes(rest.partition(".")[0])) == outcome.FAILED
