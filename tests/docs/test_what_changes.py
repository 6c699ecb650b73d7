"""``docs/explanation/what-changes.md`` is ``preset.py``: every setting and attribute, Celery's value and ours."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from celery import Celery, Task
from celery.app.defaults import DEFAULTS

from celery_hardened import HardenedTask, harden
from celery_hardened.preset import AMQP_TRANSPORT_OPTIONS, APP_WIDE, REDIS_TRANSPORT_OPTIONS, lay_app_wide, lay_task
from celery_hardened.settings import Settings
from tests.support.pages import codes, generated

PAGE = "explanation/what-changes.md"


def cells(name: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in generated(PAGE, name)[2:]]


def shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_app_wide_settings_are_those_of_the_preset() -> None:
    """Each difference from Celery's defaults is one row with both values; what is no difference is listed as such."""
    expected = []
    for name, value in APP_WIDE.items():
        if isinstance(value, dict):
            changed = {key: item for key, item in value.items() if DEFAULTS[name].get(key) != item}
            expected += [[name, key, str(DEFAULTS[name][key]), key, str(item)] for key, item in changed.items()]
        elif DEFAULTS[name] != value:
            expected.append([name, str(DEFAULTS[name]), str(value)])
    for key, item in (REDIS_TRANSPORT_OPTIONS | AMQP_TRANSPORT_OPTIONS).items():
        expected.append(["broker_transport_options", key, key, str(item)])
    assert [codes(" ".join(row[:3])) for row in cells("app-wide")] == expected

    same = " ".join(generated(PAGE, "same"))
    listed = dict(re.findall(r"`(\w+)` \(([^)]+)\)", same))
    values: dict[str, str] = {name: value.strip("`") for name, value in listed.items()}
    unchanged = {name: value for name, value in APP_WIDE.items() if DEFAULTS[name] == value}
    words = {("json",): "json", timedelta(days=1): "a day"}
    assert values == {name: words.get(value, str(value)) for name, value in unchanged.items()}


def test_what_the_user_set_stays() -> None:
    """Celery's default, set by the user, counts as set; a dict is merged key by key, ``None`` being a value."""
    app = Celery("shop", broker="redis://", set_as_current=False)
    options = {"socket_timeout": None, "visibility_timeout": 60}
    app.conf.update(worker_prefetch_multiplier=4, broker_transport_options=options)
    laid = lay_app_wide(app)
    assert app.conf.worker_prefetch_multiplier == 4
    assert app.conf.broker_transport_options == {**REDIS_TRANSPORT_OPTIONS, **options}
    assert "worker_prefetch_multiplier" not in laid
    assert "socket_timeout" not in laid["broker_transport_options"]


def test_attributes_of_hardened_tasks_are_those_of_the_preset() -> None:
    """Each attribute that is given to a silent task, Celery's default and ours."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    harden(app)

    class Silent(HardenedTask):
        name = "silent"

    lay_task(Silent, app=app, settings=Settings())
    given = {name: value for name, value in vars(Silent).items() if not name.startswith("_") and name != "name"}
    rows = {codes(row[0])[0]: (codes(row[1])[0], codes(row[2])[0]) for row in cells("per-task")}

    def stock(name: str) -> Any:
        configured = dict(Task.from_config).get(name)
        return getattr(Task, name) if configured is None or getattr(Task, name) is not None else DEFAULTS[configured]

    assert rows == {name: (shown(stock(name)), shown(value)) for name, value in given.items()}


def test_each_way_back_works() -> None:
    """What the page says keeps Celery's value, for one task and for all."""
    rows = cells("per-task")
    for_one = {name: value for row in rows for name, value in re.findall(r"`(\w+)=(\w+)`", row[4])}
    for_all = {name: value for row in rows for name, value in re.findall(r"`(\w+) = (\w+)`", row[4])}
    one = {name: eval(value) for name, value in for_one.items()}
    assert one == {"acks_late": False, "reject_on_worker_lost": False, "max_retries": 3, "time_limit": 0}

    app = Celery("shop", broker="memory://", set_as_current=False)
    harden(app)

    @app.task(base=HardenedTask, shared=False, **one)  # type: ignore[misc]
    def as_before() -> None: ...

    assert {name: getattr(as_before, name) for name in one} == one
    assert as_before.soft_time_limit is None

    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update({name: eval(value) for name, value in for_all.items()})
    harden(app)

    @app.task(base=HardenedTask, shared=False)  # type: ignore[misc]
    def all_as_before() -> None: ...

    found = [getattr(all_as_before, codes(row[0])[0]) for row in rows]
    assert found == [False, False, 3, None, None]
