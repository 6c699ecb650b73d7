"""Entries of ``beat_schedule`` that could be lost without a word."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_hardened.beat.config_source import ConfigSource
from celery_hardened.beat.policy import Policy
from celery_hardened.beat.schedule import Problem, Schedule

CLEANUP = "celery.backend_cleanup"


def loaded(entries: dict[Any, Any], **conf: Any) -> list[Schedule | Problem]:
    app = Celery(broker="memory://", set_as_current=False)
    app.conf.update(beat_schedule=entries, **conf)
    return list(ConfigSource(app, defaults=Policy()).load())


@pytest.mark.parametrize(
    "conf",
    [{"result_backend": "redis://localhost:1"}, {"result_backend": "cache+memory://", "result_expires": None}],
    ids=["expires-by-itself", "never-expires"],
)
def test_a_cleanup_of_ones_own_is_kept(conf: dict[str, Any]) -> None:
    """Celery leaves out only the one that it would have added itself."""
    own = {"task": "shop.cleanup", "schedule": crontab(minute="0", hour="3")}
    (found,) = loaded({CLEANUP: own}, **conf)
    assert isinstance(found, Schedule)
    assert found.task == "shop.cleanup"
    assert loaded({}, **conf) == []


def test_a_backend_that_keeps_results_for_ever_is_cleaned_once() -> None:
    """By Celery's entry, or by that of the app in its place."""
    assert [one.name for one in loaded({}, result_backend="rpc://")] == []
    backend = {"result_backend": "file:///tmp"}
    assert [one.name for one in loaded({}, **backend)] == [CLEANUP]
    own = {CLEANUP: {"task": "shop.cleanup", "schedule": 3600.0}}
    assert [getattr(one, "task", None) for one in loaded(own, **backend)] == ["shop.cleanup"]


def test_two_entries_of_one_name_are_a_problem() -> None:
    """``1`` and ``"1"`` are two keys and one schedule: neither is fired in the place of the other unsaid."""
    entry = {"task": "t", "schedule": 1.0}
    found = loaded({1: entry, "1": entry, "good": entry}, result_expires=None)
    assert [(type(one), one.name) for one in found] == [(Problem, "1"), (Schedule, "good")]


@pytest.mark.parametrize("said", ["5", "* * * * *", True, [5], {"seconds": 5}], ids=repr)
def test_what_is_no_schedule_is_said(said: Any) -> None:
    """A sentence on what to give, and no error of Celery's; ``True`` is no second."""
    (found,) = loaded({"one": {"task": "t", "schedule": said}}, result_expires=None)
    assert isinstance(found, Problem)
    assert f"a {type(said).__name__} is no schedule: give seconds as a number, a timedelta, crontab(...)" in found.text


def test_without_a_result_backend_there_is_a_cleanup() -> None:
    """As in Celery, whose backend that is none drops nothing by itself either; ``result_expires`` unset spares it."""
    assert [one.name for one in loaded({})] == [CLEANUP]
    assert loaded({}, result_expires=None) == []
