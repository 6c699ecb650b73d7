"""The preset lies below every word of the user's, and reaches nobody it is not for."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, Task

from celery_hardened import HardenedTask, Hardening, harden
from celery_hardened.preset import APP_WIDE, REDIS_TRANSPORT_OPTIONS
from tests.unit.conftest import MakeApp

#: A value for each app-wide setting that is neither Celery's nor ours.
THEIRS: dict[str, Any] = {
    "worker_prefetch_multiplier": 7,
    "enable_utc": False,
    "accept_content": ["yaml"],
    "task_serializer": "yaml",
    "result_serializer": "yaml",
    "result_expires": 60,
    "broker_connection_retry_on_startup": False,
    "broker_connection_timeout": 99,
    "task_publish_retry": False,
    "task_publish_retry_policy": {"max_retries": 7, "interval_start": 7, "interval_step": 7, "interval_max": 7},
    "worker_cancel_long_running_tasks_on_connection_loss": True,
}


def test_there_is_a_foreign_value_for_each() -> None:
    assert THEIRS.keys() == APP_WIDE.keys()


def set_before(app: Celery, name: str, value: Any) -> None:
    app.conf.update({name: value})
    harden(app)


def set_after(app: Celery, name: str, value: Any) -> None:
    harden(app)
    app.conf.update({name: value})


def set_after_reading(app: Celery, name: str, value: Any) -> None:
    harden(app)
    assert app.conf.broker_url
    app.conf[name] = value


def set_by_object(app: Celery, name: str, value: Any) -> None:
    harden(app)
    app.config_from_object({name: value})


def set_by_object_before(app: Celery, name: str, value: Any) -> None:
    app.config_from_object({name: value}, force=True)
    harden(app)


def set_by_namespace(app: Celery, name: str, value: Any) -> None:
    harden(app)
    app.config_from_object({f"CELERY_{name.upper()}": value}, namespace="CELERY")


def set_as_default(app: Celery, name: str, value: Any) -> None:
    app.add_defaults({name: value})
    harden(app)


EVERY_WAY = pytest.mark.parametrize(
    "set_it",
    [
        set_before,
        set_after,
        set_after_reading,
        set_by_object,
        set_by_object_before,
        set_by_namespace,
        set_as_default,
    ],
    ids=lambda way: way.__name__,
)


@EVERY_WAY
@pytest.mark.parametrize("name", sorted(APP_WIDE))
def test_every_app_wide_setting_of_the_user_stands(make_app: MakeApp, set_it: Any, name: str) -> None:
    """However and whenever it was set; the others of the preset are laid all the same."""
    app = make_app()
    set_it(app, name, THEIRS[name])
    assert app.conf[name] == THEIRS[name]
    other = (
        "worker_prefetch_multiplier" if name != "worker_prefetch_multiplier" else "broker_connection_retry_on_startup"
    )
    assert app.conf[other] == APP_WIDE[other]


@EVERY_WAY
def test_celerys_own_default_is_a_users_word_if_he_says_it(make_app: MakeApp, set_it: Any) -> None:
    app = make_app()
    set_it(app, "worker_prefetch_multiplier", 4)
    assert app.conf.worker_prefetch_multiplier == 4


@pytest.mark.parametrize("set_it", [set_before, set_by_object, set_by_object_before, set_by_namespace])
def test_dicts_merge_key_by_key(make_app: MakeApp, set_it: Any) -> None:
    """The user's keys win, None included; ours fill the gaps; his own dict is not changed."""
    theirs = {"socket_timeout": None, "visibility_timeout": 5}
    app = make_app(broker="redis://nowhere.invalid/0")
    set_it(app, "broker_transport_options", theirs)
    assert app.conf.broker_transport_options == {**REDIS_TRANSPORT_OPTIONS, **theirs}
    assert theirs == {"socket_timeout": None, "visibility_timeout": 5}
    laid = Hardening.expect(app).preset["broker_transport_options"]
    assert laid == {"socket_connect_timeout": 5, "socket_keepalive": True}


def test_our_own_dicts_are_not_the_apps(make_app: MakeApp) -> None:
    """What one app does with its configuration does not reach the next."""
    one, other = (harden(make_app(broker="redis://nowhere.invalid/0")) for _ in range(2))
    one.conf.broker_transport_options["visibility_timeout"] = 5
    one.conf.task_publish_retry_policy["max_retries"] = 99
    assert other.conf.broker_transport_options == {
        "socket_timeout": 5,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
    }
    assert other.conf.task_publish_retry_policy["max_retries"] == 3


@pytest.mark.parametrize(
    ("url", "redis"),
    [
        ("redis://h/0", True),
        ("rediss://h/0", True),
        ("sentinel://h:26379", True),
        ("redis+socket:///x", True),
        (["redis://a/0", "redis://b/0"], True),
        ("redis://a/0;redis://b/0", True),
        ("amqp://h//", False),
        ("pyamqp://h//", False),
        ("memory://", False),
        ("sqs://", False),
    ],
    ids=str,
)
def test_socket_options_are_for_redis(make_app: MakeApp, url: Any, redis: bool) -> None:
    """Another transport may not know them."""
    app = harden(make_app())
    app.conf.broker_url = url
    assert ("socket_timeout" in (app.conf.broker_transport_options or {})) is redis
    assert ("confirm_publish" in (app.conf.broker_transport_options or {})) is ("amqp" in str(url))


def test_a_dry_run_lays_nothing(make_app: MakeApp) -> None:
    """Neither app-wide nor on a task."""
    stock, app = make_app(), harden(make_app(hardened_observe=True))
    for name in APP_WIDE:
        assert app.conf[name] == stock.conf[name], name
    ours, theirs = define(app), define(stock)
    for attribute in ATTRIBUTES:
        assert getattr(ours, attribute) == getattr(theirs, attribute), attribute


# --- one task ---------------------------------------------------------------------------------------------

ATTRIBUTES = ("acks_late", "reject_on_worker_lost", "max_retries", "time_limit", "soft_time_limit")
OURS = {
    "acks_late": True,
    "reject_on_worker_lost": True,
    "max_retries": 10,
    "time_limit": 300.0,
    "soft_time_limit": 240.0,
}


def define(app: Celery, **options: Any) -> Any:
    @app.task(**{"base": HardenedTask, "shared": False, "name": "charge", **options})
    def charge() -> None: ...

    return charge


def limits(task: Any) -> tuple[Any, Any]:
    return task.time_limit, task.soft_time_limit


def test_a_silent_task_gets_the_preset(make_app: MakeApp) -> None:
    app = harden(make_app())
    charge = define(app)
    app.finalize()  # binds everything once more
    assert {name: getattr(charge, name) for name in ATTRIBUTES} == OURS


@pytest.mark.parametrize("order", ["harden first", "task first", "task used first"])
@pytest.mark.parametrize(
    ("where", "attribute", "setting", "value"),
    [
        (where, attribute, setting, value)
        for attribute, setting, value in (
            ("acks_late", "task_acks_late", False),
            ("reject_on_worker_lost", "task_reject_on_worker_lost", False),
            ("max_retries", None, 3),
            ("max_retries", None, 0),
            ("time_limit", "task_time_limit", 17),
            ("soft_time_limit", "task_soft_time_limit", 17),
        )
        for where in ("decorator", "base", "annotation", "annotation of all", "conf")
        if setting or where != "conf"
    ],
)
def test_every_attribute_of_the_user_stands(
    make_app: MakeApp, order: str, where: str, attribute: str, setting: str | None, value: Any
) -> None:
    """Said on the task, on a base, in task_annotations or in app.conf; before harden() or after."""
    conf: dict[str, Any] = {
        "annotation": {"task_annotations": {"charge": {attribute: value}}},
        "annotation of all": {"task_annotations": {"*": {attribute: value}}},
        "conf": {setting: value} if setting else {},
    }.get(where, {})
    app = make_app(**conf)
    base = type("Base", (HardenedTask,), {"abstract": True, "__module__": __name__, attribute: value})
    options = {"decorator": {attribute: value}, "base": {"base": base}}.get(where, {})

    if order == "harden first":
        harden(app)
    charge = define(app, **options)
    if order == "task used first":
        assert charge.name
    if order != "harden first":
        harden(app)
    app.finalize()

    # Celery 5.6 takes limits of the configuration to the pool, not to the task.
    on_task = where != "conf" or attribute in dict(Task.from_config)
    assert getattr(charge, attribute) == (value if on_task else None)
    for other in ("acks_late", "reject_on_worker_lost"):
        if other != attribute:
            assert getattr(charge, other) is True
    soft, hard = charge.soft_time_limit, charge.time_limit
    assert soft is None or hard is None or soft <= hard, "ours crosses the user's"
    charge.apply_async()  # Celery refuses a soft limit above the hard one


def test_limits_of_our_settings(make_app: MakeApp) -> None:
    app = harden(make_app(hardened_time_limit=30, hardened_soft_time_limit=20))
    assert limits(define(app)) == (30, 20)
    app = harden(make_app(hardened_time_limit=None, hardened_soft_time_limit=None))
    assert limits(define(app)) == (None, None)


def test_a_horizon_replaces_the_count(make_app: MakeApp) -> None:
    """retry_for without max_retries is bounded by time alone; with it by both."""
    app = harden(make_app())
    assert define(app, retry_for=3600).max_retries is None
    assert define(app, name="both", retry_for=3600, max_retries=4).max_retries == 4


def test_none_means_unset_save_for_max_retries(make_app: MakeApp) -> None:
    """As in Celery: a class that says time_limit = None says nothing; max_retries = None is for ever."""
    app = harden(make_app())
    charge = define(app, time_limit=None, acks_late=None, max_retries=None, retry_for=60)
    assert (charge.time_limit, charge.acks_late, charge.max_retries) == (300.0, True, None)
    app = harden(make_app(hardened_retry_for=60))
    assert define(app, max_retries=None).max_retries is None


@pytest.mark.parametrize("level", ["hardened", "all"])
def test_nobody_else_is_reached(make_app: MakeApp, level: Any) -> None:
    """Contained and celery.* tasks have every attribute as without us, whatever Celery reads from the configuration."""
    stock, app = make_app(), harden(make_app(), tasks=level)
    names = [name for name in stock.tasks if name.startswith("celery.")]
    pairs = [(stock.tasks[name], app.tasks[name]) for name in names]
    if level == "hardened":
        pairs.append((define(stock, base=Task), define(app, base=Task)))
    attributes = {name for name, _ in Task.from_config} | set(ATTRIBUTES)
    for theirs, ours in pairs:
        for attribute in sorted(attributes):
            assert getattr(ours, attribute) == getattr(theirs, attribute), (ours.name, attribute)


def test_classes_of_the_user_are_not_written_to(make_app: MakeApp) -> None:
    """Two tasks on one base, and the base on another app, have nothing to do with each other."""
    base = type("Base", (HardenedTask,), {"abstract": True, "__module__": __name__})
    app = harden(make_app())
    one, two = define(app, base=base), define(app, name="two", base=base, acks_late=False, time_limit=9)
    assert {name: getattr(one, name) for name in ATTRIBUTES} == OURS
    assert (two.acks_late, limits(two)) == (False, (9, None))
    assert not set(ATTRIBUTES) & base.__dict__.keys()
    assert not set(ATTRIBUTES) & HardenedTask.__dict__.keys()
