"""What real beats show and tell: one of their own, and one that a worker embeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from celery_hardened.beat.names import Keys
from celery_hardened.beat.record import Record
from tests.fixtures.beats import StartBeat
from tests.fixtures.processes import StartWorker
from tests.support.health import Probed
from tests.support.notes import notes
from tests.support.until import until

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["redis"], indirect=True)]

#: Its receivers note what they are told, and in which thread.
APP = (
    (Path(__file__).parents[1] / "support" / "beat_app.py").read_text()
    + """

import threading
from celery_hardened.signals import leader_changed, schedule_fired


@leader_changed.connect
def on_leader(sender, leads, term, why, **_):
    note("leads", leads, term, sender is app, threading.current_thread().name)


@schedule_fired.connect
def on_fired(sender, schedule, slot, task_id, missed, **_):
    note("fired", schedule, slot, task_id)
"""
)

FIRED = 'beat_slots_total{schedule="often",outcome="fired"}'

SCHEDULES = {"SCHEDULES": "{'often': {'task': 'proj.tick', 'schedule': 0.5}}"}


@pytest.fixture
def record(records_url: str, environment: dict[str, str]) -> Iterator[Callable[[], int]]:
    client = Redis.from_url(records_url)
    keys = Keys(environment["KEY_PREFIX"])

    def fired() -> int:
        text = client.hget(keys.records, "often")
        return Record.parse(text).fired if text else 0

    yield fired
    client.close()


def value(page: str, series: str) -> float:
    """One line of the page; NaN: it is not there."""
    found = re.search(rf"^celery_hardened_{re.escape(series)} (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else float("nan")


def test_a_beat_of_its_own(start_beat: StartBeat, tmp_path: Path, out: Path, record: Callable[[], int]) -> None:
    """It shows its lead, its turns and its slots at its own endpoint, as the record has them; a standby shows that it
    does not lead; who takes the lead, and who lets it go, is told."""
    first, second = Probed(tmp_path / "first"), Probed(tmp_path / "second")
    leader = start_beat(APP, env={**SCHEDULES, **first.env})
    start_beat(APP, env={**SCHEDULES, **second.env}, leads=False).wait_standing_by()
    until(lambda: value(first.metrics(), FIRED) >= 4, what="four fires")
    before, page, after = record(), first.metrics(), record()
    assert value(page, FIRED) <= after
    until(lambda: value(first.metrics(), FIRED) >= before, what="what was fired before to be counted")
    assert value(page, "beat_leader") == 1
    assert value(page, "beat_schedules") == 1
    assert value(page, "beat_term") == value(second.metrics(), "beat_term") == 1
    assert value(second.metrics(), "beat_leader") == 0
    assert value(page, "beat_lateness_seconds_count") >= 4
    assert value(second.metrics(), "beat_last_tick_timestamp_seconds") > 0

    leader.stop()
    until(lambda: value(second.metrics(), "beat_leader") == 1, what="the other beat to lead", within=60)
    expected = {("True", "1", "True"), ("False", "1", "True"), ("True", "2", "True")}
    until(
        lambda: {tuple(line.split()[:3]) for line in notes(out, "leads")} >= expected,
        what="the end of the lead, and the next one, to be told",
    )
    told = [line.split() for line in notes(out, "leads")]
    assert {words[3] for words in told} == {"celery-hardened-beat-signals"}
    assert notes(out, "fired")


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_beat_in_a_worker(
    start_worker: StartWorker, tmp_path: Path, out: Path, record: Callable[[], int], pool: str
) -> None:
    """``worker -B``: Celery forks it and closes its files, and the worker's page has its numbers all the same."""
    probed = Probed(tmp_path / "probes")
    worker = start_worker(APP, pool=pool, env={**SCHEDULES, **probed.env}, args=["-B", "--scheduler", "hardened"])
    until(
        lambda: value(probed.metrics(), FIRED) >= 4,
        what="four fires on the worker's page",
        within=90,
    )
    before, page = record(), probed.metrics()
    assert value(page, FIRED) <= record()
    until(lambda: value(probed.metrics(), FIRED) >= before, what="what was fired before to be told")
    assert value(page, "beat_leader") == 1
    assert value(page, "beat_term") >= 1
    assert value(page, "beat_schedules") == 1
    assert value(page, "beat_last_tick_timestamp_seconds") > 0
    assert value(page, "beat_lateness_seconds_count") >= 4
    assert notes(out, "fired")
    worker.stop()
