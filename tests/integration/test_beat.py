"""A real beat, a real worker: what is scheduled runs, once a slot."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from celery_hardened.beat.names import task_id_of
from tests.fixtures.beats import StartBeat
from tests.fixtures.processes import StartWorker
from tests.support.notes import notes
from tests.support.until import until

APP = (Path(__file__).parents[1] / "support" / "beat_app.py").read_text()


def runs(out: Path, schedule: str) -> list[tuple[float, str, int]]:
    """Slot, task id and missed of each run of *schedule*."""
    lines = [line.split() for line in notes(out, "runs")]
    return [(float(slot), task_id, int(missed)) for name, slot, task_id, missed in lines if name == schedule]


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_each_slot_runs_once_under_its_own_id(start_beat: StartBeat, start_worker: StartWorker, out: Path) -> None:
    """An interval runs once a slot, a period apart to the millisecond, under its slot's id, through a fail-over."""
    env = {"SCHEDULES": "{'often': {'task': 'proj.tick', 'schedule': 0.5, 'args': (1,)}}"}
    start_worker(APP, env=env, concurrency=1)  # one after the other, so that the runs so far have no gap
    first = start_beat(APP, env=env)
    start_beat(APP, env=env, leads=False).wait_standing_by()
    until(lambda: len(runs(out, "often")) >= 10, what="ten runs", within=60)
    first.kill()
    so_far = len(runs(out, "often"))
    until(lambda: len(runs(out, "often")) >= so_far + 10, what="ten runs more, of the other beat", within=60)

    found = sorted(runs(out, "often"))
    slots = [slot for slot, _, _ in found]
    assert slots == sorted(set(slots))
    assert [round((b - a) * 1000) for a, b in pairwise(slots)] == [500] * (len(slots) - 1)
    assert all(task_id == task_id_of("often", slot) for slot, task_id, _ in found)
    assert all(missed == 0 for _, _, missed in found)


def test_a_bad_entry_is_its_own_trouble(start_beat: StartBeat, start_worker: StartWorker, out: Path) -> None:
    """A misspelt key, an unknown policy, an overlap nobody could hold, unserializable arguments: the good one runs."""
    env = {
        "SCHEDULES": json.dumps(
            {
                "good": {"task": "proj.tick", "schedule": 0.5},
                "misspelt": {"task": "proj.tick", "schedule": 0.5, "overlaps": "skip"},
                "unknown": {"task": "proj.tick", "schedule": 0.5, "missed_run": "sometimes"},
                "elsewhere": {"task": "other.task", "schedule": 0.5, "overlap": "skip"},
            }
        ).replace("}}", "}, 'unsent': {'task': 'proj.tick', 'schedule': 0.5, 'args': (object(),)}}")
    }
    start_worker(APP, env=env)
    beat = start_beat(APP, env=env)
    until(lambda: len(runs(out, "good")) >= 6, what="the good one to run", within=60)
    log = beat.log()
    for name in ("misspelt", "unknown", "elsewhere", "unsent"):
        assert f"schedule '{name}'" in log
        assert not runs(out, name)
    assert beat.running
