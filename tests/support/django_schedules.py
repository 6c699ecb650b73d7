"""Periodic tasks of django-celery-beat for tests, in whichever database a test asks for."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from celery import Celery
from django.db import connections
from django_celery_beat.models import (
    ClockedSchedule,
    CrontabSchedule,
    IntervalSchedule,
    PeriodicTask,
    PeriodicTasks,
    SolarSchedule,
)

from celery_hardened.beat.policy import Policy
from celery_hardened.beat.schedule import Problem, Schedule
from celery_hardened.beat.source import Change
from celery_hardened.contrib.django.models import SchedulePolicy, ScheduleRun
from celery_hardened.contrib.django.schedules.reader import Reader
from celery_hardened.contrib.django.schedules.reading import Reading

MODELS = (
    ScheduleRun,
    SchedulePolicy,
    PeriodicTask,
    PeriodicTasks,
    IntervalSchedule,
    CrontabSchedule,
    SolarSchedule,
    ClockedSchedule,
)


class Route:
    """Sends the tables of schedules to one database, as a project's router may."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return self.alias if model in MODELS else None

    db_for_write = db_for_read

    def allow_relation(self, *args: Any, **hints: Any) -> bool:
        return True


def clear(alias: str) -> None:
    """Empty the tables, without asking any model's own ``delete``."""
    for model in MODELS:
        model._base_manager.using(alias).all()._raw_delete(alias)


def every(seconds: int = 60, **columns: Any) -> Any:
    """An enabled task with an interval of its own."""
    return task(interval=IntervalSchedule.objects.create(every=seconds, period="seconds"), **columns)


def task(name: str = "invoices", **columns: Any) -> Any:
    return PeriodicTask.objects.create(name=name, **{"task": "shop.invoice_all", **columns})


def crontab(minute: str = "0", hour: str = "2", timezone: str = "Europe/Paris", **fields: Any) -> Any:
    return CrontabSchedule.objects.create(minute=minute, hour=hour, timezone=timezone, **fields)


def many(count: int) -> None:
    """So many tasks, which share a few timings, in one go and without a stamp."""
    interval = IntervalSchedule.objects.create(every=60, period="seconds")
    timings = [{"interval": interval}, {"crontab": crontab()}]
    PeriodicTask.objects.bulk_create(
        [
            PeriodicTask(name=f"task {number}", task="shop.note", args=f"[{number}]", **timings[number % 2])
            for number in range(count)
        ],
        batch_size=500,
    )


def sql(alias: str, statement: str) -> None:
    """Run *statement* past Django, on a connection of its own."""
    settings = connections[alias].settings_dict
    if alias == "default":
        with closing(sqlite3.connect(settings["NAME"], timeout=30)) as connection, connection:
            connection.execute(statement)
        return
    with psycopg.connect(
        host=settings["HOST"], port=settings["PORT"], user=settings["USER"], dbname=settings["NAME"], autocommit=True
    ) as server:
        server.execute(statement.encode())


def elsewhere(edit: Callable[[], Any]) -> None:
    """Run *edit* on a connection of its own, as a web server does: SQLite tells a connection of the others' writes."""

    def run() -> None:
        try:
            edit()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()


class Clock:
    """Wall clock and monotonic one in the test's hand."""

    def __init__(self, at: float) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def reader(alias: str, clock: Callable[[], float] | None = None, *, policy: Policy = Policy()) -> Reader:  # noqa: B008
    """A reader of this thread, in UTC."""
    reading = Reading(Celery("shop", set_as_current=False), policy)
    return Reader(alias, reading, clock=clock, monotonic=clock) if clock else Reader(alias, reading)


def names(changes: list[Change]) -> list[tuple[str, str]]:
    """Kind and name of each."""
    return sorted((type(change).__name__, change.name) for change in changes)


def only(changes: Any) -> Schedule:
    """The one schedule in *changes*."""
    (found,) = changes
    assert isinstance(found, Schedule), found
    return found


def problem(changes: Any) -> str:
    """The text of the one problem in *changes*."""
    (found,) = changes
    assert isinstance(found, Problem), found
    return found.text


@contextmanager
def statements(alias: str) -> Iterator[list[tuple[str, int]]]:
    """Every statement of this thread, with the number of rows that came back or were written."""
    seen: list[tuple[str, int]] = []

    def wrapper(execute: Any, statement: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(statement, params, many, context)
        seen.append((statement, context["cursor"].rowcount))
        return result

    with connections[alias].execute_wrapper(wrapper):
        yield seen
