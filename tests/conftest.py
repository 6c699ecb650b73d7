"""Loads the fixtures (they are in `tests/fixtures`) and keeps test ids the same everywhere."""

from __future__ import annotations

import re

import pytest
from hypothesis import settings

# However long an example takes: on a busy machine that says nothing about it.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

pytest_plugins = [
    "tests.fixtures.servers",
    "tests.fixtures.processes",
    "tests.fixtures.clocks",
    "tests.fixtures.beats",
    "tests.fixtures.nodes",
    "tests.fixtures.browser",
    "tests.fixtures.prometheus",
]

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse ids that hold a memory address: two test processes would not agree on what there is to run."""
    unstable = [item.nodeid for item in items if _ADDRESS.search(item.nodeid)]
    if unstable:
        raise pytest.UsageError("these ids differ in every process, give them ids=...: " + ", ".join(unstable[:5]))
