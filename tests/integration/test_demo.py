"""The demo: every line of its summary holds, it fails when one does not, and it leaves nothing, however it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from celery_hardened.demo.scenes import SCENES
from tests.support.proc import Proc
from tests.support.until import until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

#: What the summary promises, in its order.
SUBJECTS = [
    "flaky dependency",
    "jittered retries",
    "validation error",
    "killer task",
    "tasks behind it",
    "garbage",
    "tasks behind it",
    "bug in v1",
    "redrive with v2",
    "its chord",
    "nothing lost",
    "nothing left",
]

_SUMMARY = "What was promised, and what happened"


def environment(place: Path, **more: str) -> dict[str, str]:
    """All it writes goes to *place*, by which what it leaves behind is recognised too."""
    place.mkdir()
    return {"TMPDIR": str(place), "PYTHONIOENCODING": "utf-8", **more}


def run(program: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=170,
        check=False,
    )


def left_in(place: Path) -> list[str]:
    """Files in *place*, and processes whose temporary files would go there."""
    found = [str(path) for path in place.iterdir()]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR", "").startswith(str(place)):
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return found


def summary(output: str) -> dict[str, list[str]]:
    """Subjects of the summary by the sign before them."""
    _, _, rest = output.partition(_SUMMARY)
    signs: dict[str, list[str]] = {"✓": [], "✗": []}
    for sign, subject in re.findall(r"^  ([✓✗])  (.{18})", rest, re.M):
        signs[sign].append(subject.strip())
    return signs


def test_every_line_of_the_summary_is_true(tmp_path: Path) -> None:
    """It plays all scenes, exits with 0, fits on 80 columns without a single escape, and leaves nothing.

    The broker of somebody's real shop, named in the environment, is not touched.
    """
    place = tmp_path / "place"
    done = run(["-m", "celery_hardened.demo"], environment(place, CELERY_BROKER_URL="redis://127.0.0.1:1/0"))

    assert done.returncode == 0, done.stdout + done.stderr
    assert summary(done.stdout) == {"✓": SUBJECTS, "✗": []}
    assert f"{len(SUBJECTS)} of {len(SUBJECTS)} lines are true" in done.stdout
    assert [scene.title for scene in SCENES if scene.title not in done.stdout] == []
    for command in ("dlq stats", "dlq list --task shop.ship", "dlq redrive --task shop.ship --why fixed --yes"):
        assert f"$ celery -A shop hardened {command}\n" in done.stdout
    assert "sent 3 of 3 letters" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\033" not in done.stdout
    assert done.stderr == ""
    assert left_in(place) == []


def test_it_fails_if_a_line_is_not_true(tmp_path: Path) -> None:
    """A deploy that fixes nothing: the redrive and its chord are not what was promised, and the exit code says so."""
    program = """
import sys
from celery_hardened.demo.scenes import redrive
from celery_hardened.demo.__main__ import main
redrive.FIX = "v1"
sys.exit(main())
"""
    place = tmp_path / "place"
    done = run(["-c", program], environment(place))

    assert done.returncode == 1, done.stdout + done.stderr
    untrue = summary(done.stdout)["✗"]
    assert untrue == ["redrive with v1", "its chord", "nothing lost"]
    assert f"{len(SUBJECTS) - len(untrue)} of {len(SUBJECTS)} lines are true" in done.stdout
    assert "NOT TRUE: 0 of 4 letters redriven" in done.stdout
    assert left_in(place) == []


@pytest.mark.parametrize(
    ("number", "moment"), [(signal.SIGINT, "killed its process"), (signal.SIGTERM, "hardened dlq stats")]
)
def test_stopped_half_way_it_leaves_nothing(
    number: signal.Signals, moment: str, processes: list[Proc], tmp_path: Path
) -> None:
    """A signal ends it soon, with the usual exit code; no process and no file is left."""
    place = tmp_path / "place"
    demo = Proc("demo", [sys.executable, "-m", "celery_hardened.demo"], cwd=tmp_path, env=environment(place))
    processes.append(demo)
    demo.start()
    demo.wait_for_log(moment, within=120)
    assert len(left_in(place)) > 5, "workers, gateway and Valkey were to be seen"

    demo.signal(number)

    assert demo.wait(within=30) == 128 + number
    assert "stopped; nothing is left running" in demo.log()
    until(lambda: left_in(place) == [], within=10, what="all it started to be gone")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_killed_it_leaves_no_process(processes: list[Proc], tmp_path: Path) -> None:
    """SIGKILL to the demo takes Valkey, gateway, workers and their pools along; only its folder stays."""
    place = tmp_path / "place"
    demo = Proc("demo", [sys.executable, "-m", "celery_hardened.demo"], cwd=tmp_path, env=environment(place))
    processes.append(demo)
    demo.start()
    demo.wait_for_log("attempt 3: done", within=120)

    demo.kill()

    def only_the_folder() -> bool:
        left = left_in(place)
        return len(left) == 1 and left[0].startswith(str(place / "celery-hardened-demo-"))

    until(only_the_folder, within=20, what="all processes to be gone")
