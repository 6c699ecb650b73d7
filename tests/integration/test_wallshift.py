"""A shifted clock is what it is called: a test that sets the clock of a process must have set it."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.fixtures.processes import StartProcess
from tests.support.until import until
from tests.support.wallshift import WallShift

WATCH = """
import datetime, pathlib, threading, time
while True:
    asked = time.monotonic()
    threading.Event().wait(0.01)
    waited = time.monotonic() - asked
    now = time.time(), datetime.datetime.now().timestamp(), time.localtime().tm_year, waited
    pathlib.Path("new").write_text(" ".join(map(str, now)))
    pathlib.Path("new").replace("said")
"""


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_process_sees_the_wall_clock_that_is_set(
    start_process: StartProcess, wall_shift: WallShift, tmp_path: Path
) -> None:
    """Each of Python's looks at the wall clock is shifted, while it runs, ahead and back; no wait is."""
    process = start_process("", "python", "-c", WATCH, env=wall_shift.environment)

    def said() -> list[float]:
        return [float(word) for word in (process.cwd / "said").read_text().split()]

    for year in (2031, 1999, 2026):
        wall_shift.set(datetime(year, 6, 1, 12, tzinfo=timezone.utc))
        until(lambda year=year: said()[2] == year, what=f"the year to be {year}")  # type: ignore[misc]
        until(lambda: abs(said()[0] - wall_shift.now()) < 5, what="time.time() to be what was set")
        until(lambda: abs(said()[1] - wall_shift.now()) < 5, what="datetime.now() to be what was set")
        assert 0.01 <= said()[3] < 5
    wall_shift.set(-3600.0)
    until(lambda: abs(said()[0] + 3600 - time.time()) < 5, what="the clock to be an hour behind")


def test_others_do_not_see_it(wall_shift: WallShift) -> None:
    """A process that was not given the clock, and this one, go by the machine's."""
    wall_shift.set(86_400.0)
    printed = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"], capture_output=True, text=True, check=True
    )
    assert abs(float(printed.stdout) - time.time()) < 60
