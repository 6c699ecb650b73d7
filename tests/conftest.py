"""Loads the fixtures; they are in `tests/fixtures`."""

from __future__ import annotations

pytest_plugins = ["tests.fixtures.servers", "tests.fixtures.processes", "tests.fixtures.nodes"]
