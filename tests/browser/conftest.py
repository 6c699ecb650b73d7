"""A site and a browser for the tests of one file."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import pytest

from tests.support.django_live import LiveSite
from tests.support.proc import LOG_TAIL
from tests.support.redis_server import RedisServer

_SITE = pytest.StashKey[LiveSite]()

StartSite = Callable[..., LiveSite]


@pytest.fixture(scope="module")
def start_site(
    request: pytest.FixtureRequest, valkey: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartSite]:
    """Start a ``LiveSite``, with what it takes; all are ended after the last test of the module."""
    started: list[LiveSite] = []

    def start(**options: object) -> LiveSite:
        site = LiveSite(tmp_path_factory.mktemp("site"), valkey, **options)  # type: ignore[arg-type]
        started.append(site)
        request.node.stash[_SITE] = site
        site.start()
        return site

    yield start
    for site in started:
        site.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the site's processes wrote with the failure of a test."""
    report = yield
    site = item.parent and item.parent.stash.get(_SITE, None)
    if report.failed and site:
        report.sections += [(f"log of {one.name}", one.log()[-LOG_TAIL:]) for one in site.processes]
    return report
