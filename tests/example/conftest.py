"""What the example's processes wrote, with the failure of a test."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support.example_site import SITE
from tests.support.proc import LOG_TAIL


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    site = item.parent and item.parent.stash.get(SITE, None)
    if report.failed and site:
        report.sections.append(("the supervisor", site.said()[-LOG_TAIL:]))
        report.sections += [
            (f"log of {path.stem}", path.read_text(errors="replace")[-LOG_TAIL // 2 :])
            for path in sorted((site.folder / "logs").glob("*.log"))
        ]
    return report
