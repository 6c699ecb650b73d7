"""What other schedulers leave behind is read without trusting it."""

from __future__ import annotations

import collections
import dbm.dumb
import decimal
import json
import os
import pickle
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab, schedule
from celery.utils.time import LocalTimezone

from celery_hardened.beat import adopt
from celery_hardened.beat.adopt import UnreadableStateError, from_shelve, records_of
from celery_hardened.beat.kinds import when_of
from celery_hardened.beat.schedule import Schedule

APP = Celery("shop", set_as_current=False)
NOON = datetime(2026, 6, 1, 12, 0, 0, 250_000, tzinfo=timezone.utc)


class Own(schedule):
    """A schedule class of a user's."""


class Bomb:
    """Does harm where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def entry(name: str, last_run_at: Any, when: Any = None, **more: Any) -> ScheduleEntry:
    made = ScheduleEntry(
        name=name, task="shop.tick", last_run_at=NOON, schedule=when or schedule(60, app=APP), app=APP, **more
    )
    made.last_run_at = last_run_at
    return made


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a shelf as Celery does."""

    def write(entries: Any, *, protocol: int = 4, **more: Any) -> Path:
        path = tmp_path / "celerybeat-schedule"
        with dbm.dumb.open(str(path), "n") as database:
            for key, value in {"entries": entries, "__version__": "5.6.0", "tz": "UTC", **more}.items():
                database[key] = value if isinstance(value, bytes) else pickle.dumps(value, protocol=protocol)
        return path

    return write


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_last_runs_of_each_protocol_and_zone(write: Callable[..., Path], protocol: int) -> None:
    """Whatever Python wrote it, and whatever zone the app is in, an instant is an instant."""
    dates = {
        "utc": NOON,
        "zone": NOON.astimezone(ZoneInfo("America/New_York")),
        "offset": NOON.astimezone(timezone(timedelta(hours=3))),
        "local": NOON.astimezone().replace(tzinfo=LocalTimezone()),
        "naive": NOON.replace(tzinfo=None),
    }
    runs = from_shelve(write({name: entry(name, at) for name, at in dates.items()}, protocol=protocol))
    assert runs.at == dict.fromkeys(dates, NOON.timestamp())
    assert runs.unknown == {}


def test_an_entry_may_hold_anything(write: Callable[..., Path]) -> None:
    """Arguments, options and schedules of classes we do not import stand in no other's way."""
    entries = {
        "own": entry("own", NOON, Own(60, app=APP)),
        "crontab": entry("crontab", NOON, crontab(minute="*/5", app=APP)),
        "args": entry(
            "args", NOON, args=(decimal.Decimal(1), {1, 2}), kwargs={"at": NOON, "d": collections.deque([1])}
        ),
        "never": entry("never", None),
        "text": "no entry",
    }
    runs = from_shelve(write(entries))
    assert runs.at == dict.fromkeys(["own", "crontab", "args"], NOON.timestamp())
    assert runs.unknown.keys() == {"never", "text"}


def test_nothing_of_the_file_is_called(write: Callable[..., Path], tmp_path: Path) -> None:
    """A pickle that would do harm does none, wherever it is, and hides no other entry."""
    harm = tmp_path / "harm"
    path = write({"good": entry("good", NOON), "bad": entry("bad", NOON, args=(Bomb(harm),)), "worse": Bomb(harm)})
    runs = from_shelve(path)
    assert not harm.exists()
    assert runs.at == dict.fromkeys(["good", "bad"], NOON.timestamp())
    assert runs.unknown.keys() == {"worse"}
    pickle.loads(pickle.dumps(Bomb(harm)))  # it would have
    assert harm.exists()


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (b"no pickle", "damaged"),
        (pickle.dumps(NOON)[:-4], "damaged"),
        (["a", "list"], "none of celery beat's"),
        (Path("/"), "none of celery beat's"),
    ],
    ids=["garbage", "cut", "list", "object"],
)
def test_what_is_no_file_of_beat_is_said(write: Callable[..., Path], entries: Any, said: str) -> None:
    """A sentence with the file's name."""
    path = write(entries)
    with pytest.raises(UnreadableStateError, match=said) as refused:
        from_shelve(path)
    assert str(path) in str(refused.value)


def test_no_file_and_another_kind_of_file(tmp_path: Path) -> None:
    """Both are said, and nothing is made at that place."""
    with pytest.raises(UnreadableStateError, match="no such file"):
        from_shelve(tmp_path / "celerybeat-schedule")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(UnreadableStateError, match="no database"):
        from_shelve(tmp_path / "text")
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_records_go_on_from_the_last_run() -> None:
    """An interval keeps its phase; --since moves what was fired later than it was written down."""
    every = Schedule(name="every", task="t", when=when_of(60, app_timezone=timezone.utc))
    other = Schedule(name="other", task="t", when=when_of(60, app_timezone=timezone.utc))
    now = NOON.timestamp() + 150
    records = records_of([every, other], {"every": NOON.timestamp()}, since=None, now=now)
    assert records.keys() == {"every"}
    record = records["every"]
    assert (record.cursor, record.anchor) == (NOON.timestamp(), NOON.timestamp())
    assert every.when.slots(record.anchor).after(record.cursor) == NOON.timestamp() + 60
    assert record.mark == every.mark
    later = records_of([every, other], {"every": NOON.timestamp()}, since=NOON.timestamp() + 61, now=now)
    assert {name: record.cursor for name, record in later.items()} == dict.fromkeys(
        ["every", "other"], NOON.timestamp() + 61
    )


@pytest.mark.parametrize(
    ("meta", "found"),
    [
        ({"timezone": "UTC"}, 1767268800.25),
        ({"timezone": "America/New_York"}, 1767286800.25),
        ({"timezone": 3600.0}, 1767265200.25),
        ({}, 1767268800.25),
    ],
    ids=["utc", "zone", "offset", "old"],
)
def test_dates_of_redbeat(meta: dict[str, Any], found: float) -> None:
    """A zone by name, or seconds east of UTC; none is UTC."""
    said = {"__type__": "datetime", "year": 2026, "month": 1, "day": 1, "hour": 12, "minute": 0, "second": 0}
    text = json.dumps({"last_run_at": {**said, "microsecond": 250_000, **meta}})
    assert adopt._last_run(text.encode()) == found
    assert adopt._last_run(None) is None
    assert adopt._last_run(b'{"last_run_at": null}') is None
