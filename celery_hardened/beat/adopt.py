"""Moving over: when another scheduler fired each schedule last, and the records that go on from there.

A file of Celery's own beat is a shelf of pickles. It is read on a copy, and nothing that it names is imported or
called: dates are made by us, and whatever else is in it becomes an inert stand-in.
"""

from __future__ import annotations

import dbm
import io
import json
import pickle
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from redis import Redis

from celery_hardened.beat.progress import started
from celery_hardened.beat.record import Record
from celery_hardened.beat.schedule import Schedule
from celery_hardened.errors import HardenedError
from celery_hardened.redis_connection import answered

#: Names of the files that one database of the standard library's dbm may consist of, after its own.
_PARTS = ("", ".db", ".dat", ".dir", ".bak", ".pag", "-wal", "-shm", "-journal")

#: Hashes read in one round trip.
_PAGE = 500


class UnreadableStateError(HardenedError):
    """The state of another scheduler cannot be read. Nothing was changed."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.where} cannot be read: {self.problem}."


@dataclass(frozen=True, slots=True)
class LastRuns:
    """What another scheduler knew."""

    at: Mapping[str, float]
    """When each schedule was fired last, or first seen: seconds since the epoch."""

    unknown: Mapping[str, str]
    """Schedules it had, whose last run is not known, and why."""

    locked: bool = False
    """Its lock is held: it runs, or was killed a short while ago."""


def records_of(
    schedules: Iterable[Schedule], last_runs: Mapping[str, float], *, since: float | None, now: float
) -> dict[str, Record]:
    """A record for each schedule whose last run is known: what came after it is due, by the schedule's policy.

    Args:
        since: Everything up to this instant was fired by the other scheduler, whatever *last_runs* says.
    """
    found = {}
    for schedule in schedules:
        known = [at for at in (last_runs.get(schedule.name), since) if at is not None]
        if known:
            found[schedule.name] = started(replace(schedule, last_run=max(known)), now, old=None)
    return found


# --- Celery's own beat -------------------------------------------------------------------------------------


def from_shelve(path: Path) -> LastRuns:
    """Read ``celerybeat-schedule``, as ``celery.beat.PersistentScheduler`` keeps it.

    Args:
        path: As it is given to ``celery beat --schedule``.

    Raises:
        UnreadableStateError: There is no such file, it is none of beat's, or this Python cannot open its kind.
    """
    raw = _raw(path)
    if b"entries" not in raw:
        raise UnreadableStateError(str(path), "it holds no entries of celery beat")
    try:
        entries = _load(raw[b"entries"])
        in_utc = b"utc_enabled" not in raw or _load(raw[b"utc_enabled"]) is not False
    except Exception as problem:
        raise UnreadableStateError(str(path), f"its pickle is damaged ({type(problem).__name__})") from problem
    if not isinstance(entries, dict):
        raise UnreadableStateError(str(path), "its entries are none of celery beat's")
    at, unknown = {}, {}
    for name, entry in entries.items():
        # As ScheduleEntry.__reduce__ says: name, task, last run, number of runs, schedule, arguments, options.
        args = entry.args if isinstance(entry, _StandIn) else ()
        last_run = args[2] if len(args) > 2 and args[0] == name else None
        if isinstance(last_run, datetime):
            if last_run.tzinfo is None and in_utc:
                last_run = last_run.replace(tzinfo=timezone.utc)
            at[str(name)] = last_run.timestamp()
        elif isinstance(last_run, _StandIn):
            unknown[str(name)] = f"its last run is in a time zone of {last_run.of}, which is not read"
        else:
            unknown[str(name)] = "it is no entry of celery beat"
    return LastRuns(at, unknown)


def _raw(path: Path) -> dict[bytes, bytes]:
    """What the database at *path* holds, read from a copy: opening one may write to it, or wait for its lock."""
    with tempfile.TemporaryDirectory(prefix="celery-hardened-") as directory:
        copy = Path(directory, "copy")
        parts = [part for part in _PARTS if path.with_name(path.name + part).is_file()]
        if not parts:
            raise UnreadableStateError(str(path), "there is no such file")
        try:
            for part in parts:
                shutil.copyfile(path.with_name(path.name + part), f"{copy}{part}")
            with dbm.open(str(copy), "r") as database:
                return {_bytes(key): _bytes(database[key]) for key in database.keys()}  # noqa: SIM118 - not a dict
        except (*dbm.error, OSError, ImportError, ValueError, SyntaxError) as problem:
            raise UnreadableStateError(
                str(path), f"it is no database that this Python can open ({type(problem).__name__}: {problem})"
            ) from problem


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class _StandIn:
    """Whatever a pickle names that we do not make ourselves: it does nothing, and remembers how it was made."""

    of = ""

    def __new__(cls, *_: Any, **__: Any) -> _StandIn:
        return object.__new__(cls)

    def __init__(self, *args: Any, **_: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        """Not wanted."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Not wanted."""

    def append(self, item: Any) -> None:
        """Not wanted."""

    extend = append

    def __call__(self, *_: Any, **__: Any) -> _StandIn:
        return self


class _Inert(pickle.Unpickler):
    """Makes plain values and dates, and stand-ins for all else."""

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case "datetime", "datetime":
                return _datetime
            case "datetime", ("timedelta" | "timezone" | "date" | "time"):
                return {"timedelta": timedelta, "timezone": timezone, "date": date, "time": time}[name]
            case "zoneinfo", "ZoneInfo._unpickle":
                return _zone
            case "builtins", ("set" | "frozenset"):
                return {"set": set, "frozenset": frozenset}[name]
            case "builtins", "getattr":  # how older protocols say ZoneInfo._unpickle
                return _attribute
        return type("_StandIn", (_StandIn,), {"of": f"{module}.{name}"})


def _load(text: bytes) -> Any:
    return _Inert(io.BytesIO(text)).load()


def _attribute(of: Any, name: Any) -> Any:
    asked = isinstance(of, type) and issubclass(of, _StandIn) and (of.of, name)
    return _zone if asked == ("zoneinfo.ZoneInfo", "_unpickle") else _StandIn()


def _zone(key: Any, _from_cache: Any = True) -> tzinfo:
    return ZoneInfo(str(key))


def _datetime(state: Any, zone: Any = None) -> Any:
    """A date as ``datetime`` pickles itself; a stand-in for one whose zone we do not know."""
    made: Any = datetime
    naive: datetime = made(state)
    if not isinstance(zone, _StandIn):
        return naive.replace(tzinfo=zone)
    match zone.of, zone.args:
        case "celery.utils.time.LocalTimezone", _:
            return naive.astimezone()
        case (("pytz._UTC" | "pytz.UTC" | "dateutil.tz.tz.tzutc"), _):
            return naive.replace(tzinfo=timezone.utc)
        case "pytz._p", (_, int(offset), *_):
            return naive.replace(tzinfo=timezone(timedelta(seconds=offset)))
    return zone


# --- RedBeat ---------------------------------------------------------------------------------------------------


def from_redbeat(client: Redis, *, prefix: str = "redbeat:", lock_key: str | None = None) -> LastRuns:
    """Read the schedules that RedBeat keeps in Redis. Nothing is written.

    Args:
        prefix: ``redbeat_key_prefix``.
        lock_key: ``redbeat_lock_key``, where it is another than ``<prefix>:lock``.

    Raises:
        StoreUnavailableError: That Redis does not answer.
        UnreadableStateError: No schedule of RedBeat's is there.
    """
    lock = lock_key if lock_key is not None else f"{prefix}:lock"
    with answered("reading the schedules of RedBeat"):
        keys: list[Any] = client.zrange(f"{prefix}:schedule", 0, -1)
        locked = bool(lock and client.exists(lock))
    if not keys:
        raise UnreadableStateError(f"RedBeat's {prefix}:schedule", "it is not there, or empty")
    at: dict[str, float] = {}
    unknown: dict[str, str] = {}
    for first in range(0, len(keys), _PAGE):
        page = keys[first : first + _PAGE]
        with answered("reading the schedules of RedBeat"), client.pipeline(transaction=False) as pipe:
            for key in page:
                pipe.hget(key, "meta")
            metas = pipe.execute(raise_on_error=False)
        for key, meta in zip(page, metas, strict=True):
            name = key.decode("utf-8", "surrogateescape").removeprefix(prefix)
            try:
                last_run = _last_run(meta)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError) as problem:
                unknown[name] = f"what RedBeat keeps of it is damaged ({type(problem).__name__})"
                continue
            if last_run is None:
                unknown[name] = "RedBeat has not fired it yet"
            else:
                at[name] = last_run
    return LastRuns(at, unknown, locked)


def _last_run(meta: Any) -> float | None:
    if meta is None:
        return None
    said = json.loads(meta)["last_run_at"]
    if said is None:
        return None
    if said.pop("__type__") != "datetime":
        raise ValueError("it is no date")
    zone = said.pop("timezone", "UTC")
    # RedBeat writes the name of a zone, or seconds east of UTC.
    known = ZoneInfo(zone) if isinstance(zone, str) else timezone(timedelta(seconds=zone))
    return datetime(**said, tzinfo=known).timestamp()
