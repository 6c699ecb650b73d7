"""``manage.py check``: each rule fires on what it is about, says so, and leaves alone what is right."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import django_celery_beat
import pytest
from celery import Celery, _state
from django.core import checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections, router
from django.test import override_settings
from kombu import Exchange, Queue

from celery_hardened import HardenedTask, harden, idempotent
from celery_hardened.contrib.django import checks as ours
from tests.support.client import client_side, without_shared_tasks

REDIS = "redis://localhost:6379/0"


@pytest.fixture(autouse=True)
def nobody_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks at settings may not look for servers: whoever does fails here."""

    def refuse(self: Any, address: Any) -> None:
        raise AssertionError(f"a check connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Celery]]:
    """Makes a hardened app on Redis, as a project has one, and the current one of this process."""
    with client_side():
        without_shared_tasks()

        def make(*, hardened: bool = True, **conf: Any) -> Celery:
            app = Celery("shop", broker=REDIS, backend=REDIS, set_as_current=False)
            app.conf.update(conf)
            monkeypatch.setattr(_state._tls, "current_app", app)
            if hardened:
                harden(app)
            return app

        yield make


def found(*, deploy: bool = False) -> dict[str, checks.CheckMessage]:
    """The messages of ours, by what comes after the dot of their ids."""
    messages = checks.run_checks(tags=[ours.TAG], include_deployment_checks=deploy)
    for message in messages:
        assert message.id.startswith("celery_hardened.")
        assert message.hint
        assert message.msg.endswith((".", ").")) or message.level >= checks.ERROR
    return {message.id.partition(".")[2]: message for message in messages}


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Changes what ``DATABASES`` says of an alias."""

    def change(alias: str = "default", **options: Any) -> None:
        for name, value in options.items():
            monkeypatch.setitem(connections.settings[alias], name, value)

    return change


def charge(app: Celery, **options: Any) -> Any:
    @app.task(name="shop.charge", shared=False, **options)
    def body(invoice: int) -> None: ...

    app.finalize()
    return body


# --- all of them ---------------------------------------------------------------------------------------


def test_nothing_is_said_of_a_project_that_is_right(
    project: Callable[..., Celery], database: Callable[..., None]
) -> None:
    """With transactions around requests, letters in the database and a schedule in it, ``--deploy`` too."""
    database(ATOMIC_REQUESTS=True, CONN_MAX_AGE=60, CONN_HEALTH_CHECKS=True)
    app = project(
        hardened_dead_letter_store="django:other",
        beat_scheduler="hardened-django",
        hardened_payload_store="django:default",
    )
    charge(app, base=HardenedTask)
    assert found(deploy=True) == {}


def test_a_message_can_be_silenced(project: Callable[..., Celery], capsys: pytest.CaptureFixture[str]) -> None:
    """By its id, as any of Django's; without that ``check`` prints it, and an error ends it."""
    project(accept_content=["json", "pickle"])
    call_command("check", tags=[ours.TAG])
    assert "celery_hardened.W007" in capsys.readouterr().err
    with override_settings(SILENCED_SYSTEM_CHECKS=["celery_hardened.W007"]):
        call_command("check", tags=[ours.TAG])
    assert "W007" not in capsys.readouterr().err
    project(hardened_dead_letter_store="django:nowhere")
    with pytest.raises(SystemCheckError, match=r"celery_hardened\.E002"):
        call_command("check", tags=[ours.TAG])


def test_looking_makes_no_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """W001, and the app that Celery makes for who asks for one is not made: it would stay every thread's default."""
    monkeypatch.setattr(_state._tls, "current_app", None)
    monkeypatch.setattr(_state, "default_app", None)
    message = found(deploy=True)["W001"]
    assert "from .celery import app as celery_app" in str(message.hint)
    assert _state.default_app is None
    monkeypatch.setattr(_state, "default_app", Celery("default", set_as_current=False))
    assert "W001" in found()


# --- the app -------------------------------------------------------------------------------------------


def test_an_app_that_is_not_hardened(project: Callable[..., Celery]) -> None:
    """W002, and nothing that only a hardened app can have wrong."""
    app = project(hardened=False, result_backend="rpc://")
    assert set(found(deploy=True)) == {"W002"}
    harden(app)
    assert "W002" not in found(deploy=True)


def test_settings_that_a_worker_refuses(project: Callable[..., Celery]) -> None:
    """E001, with the sentence that the worker would end with."""
    app = project(hardened_lease=0)
    assert "hardened_lease is 0" in found()["E001"].msg
    app.conf.hardened_lease = 30
    assert "E001" not in found()
    project(hardened_leese=1)
    assert "hardened_leese" in found()["E001"].msg


def test_settings_that_nobody_reads(project: Callable[..., Celery]) -> None:
    """W003: the app was never told of Django's settings."""
    with override_settings(CELERY_HARDENED_LEASE=20.0, CELERY_HARDENED_VERSION="v1"):
        app = project()
        message = found()["W003"]
        assert "2 of Django's settings" in message.msg
        assert "CELERY_HARDENED_LEASE, CELERY_HARDENED_VERSION" in message.msg
        app = project(hardened=False)
        app.config_from_object("django.conf:settings", namespace="CELERY")
        harden(app)
        assert "W003" not in found()


def test_queues_without_a_routing_key(project: Callable[..., Celery]) -> None:
    """W019, before and after Celery has filled the default key in; not of one such queue, nor of those with keys."""
    app = project(task_default_queue="low", task_queues=[Queue("low"), Queue("high"), Queue("own", routing_key="own")])
    for _ in range(2):
        message = found()["W019"]
        assert "2 queues" in message.msg
        assert "'low': high, low." in message.msg
        assert "Queue('high', routing_key='high')" in str(message.hint)
        assert len(app.amqp.queues) == 3
    fanout = Exchange("news", type="fanout")
    for right in (
        [Queue(name, routing_key=name) for name in ("low", "high")],
        [Queue("low"), Queue("own", routing_key="own"), Queue("all", exchange=fanout), Queue("me", exchange=fanout)],
        {"low": {}, "high": {}},
        None,
    ):
        project(task_default_queue="low", task_queues=right)
        assert "W019" not in found()


@pytest.mark.parametrize("name", ["accept_content", "result_serializer", "task_serializer"])
def test_pickle(project: Callable[..., Celery], name: str) -> None:
    """W007, wherever it is allowed."""
    app = project(**{name: ["json", "pickle"] if name == "accept_content" else "pickle"})
    assert f"{name} = " in found()["W007"].msg
    app.conf[name] = ["json", "yaml"] if name == "accept_content" else "json"
    assert "W007" not in found()


def test_no_redis_for_the_records(project: Callable[..., Celery]) -> None:
    """E004: on RabbitMQ the records need a Redis of their own."""
    app = project(broker_url="amqp://localhost//")
    assert "hardened_redis_url is not set" in found()["E004"].msg
    app.conf.hardened_redis_url = "redis://localhost/1"
    assert "E004" not in found()
    project(broker_url="amqp://localhost//", hardened_dead_letter_store="memory")
    assert "E004" not in found()


# --- publishes in transactions ------------------------------------------------------------------------------


def test_atomic_requests_with_publishes_at_once(project: Callable[..., Celery], database: Callable[..., None]) -> None:
    """W004."""
    app = project(hardened_publish_on_commit=False)
    assert "W004" not in found()
    database(ATOMIC_REQUESTS=True)
    assert "'default'" in found()["W004"].msg
    app.conf.hardened_publish_on_commit = True
    assert "W004" not in found()


def test_atomic_requests_with_tasks_that_do_not_wait(
    project: Callable[..., Celery], database: Callable[..., None]
) -> None:
    """W005, with the names of the tasks."""
    database(ATOMIC_REQUESTS=True)
    app = project()
    charge(app)
    message = found()["W005"]
    assert "1 of 1 tasks are not hardened: shop.charge" in message.msg
    charge(project(), base=HardenedTask)
    assert "W005" not in found()


def test_autocommit_off(project: Callable[..., Celery], database: Callable[..., None]) -> None:
    """W006."""
    project()
    assert "W006" not in found()
    database("other", AUTOCOMMIT=False)
    assert "'other'" in found()["W006"].msg


# --- databases and caches --------------------------------------------------------------------------------------


def test_letters_in_no_database(project: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch) -> None:
    """E002: an alias that is not there, or one of a kind that we cannot use."""
    project(hardened_dead_letter_store="django:archive")
    assert "names the database 'archive'; DATABASES has 'default', 'other'" in found()["E002"].msg
    project(hardened_dead_letter_store="django")
    assert "E002" not in found()
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    assert "is oracle" in found()["E002"].msg


def test_payloads_in_no_storage(project: Callable[..., Celery]) -> None:
    """E003."""
    app = project(hardened_payload_store="django:letters")
    assert "'letters'" in found()["E003"].msg
    app.conf.hardened_payload_store = "django:default"
    assert "E003" not in found()


class Apart:
    """Policies in one database, tasks in another."""

    def db_for_write(self, model: Any, **_: Any) -> str | None:
        return "other" if model._meta.app_label == "celery_hardened" else None


class Nothing:
    """Our tables are made nowhere."""

    def allow_migrate(self, db: str, app_label: str, **_: Any) -> bool | None:
        return False if app_label == "celery_hardened" else None


def test_policies_apart_from_their_tasks(project: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch) -> None:
    """E006."""
    project()
    assert "E006" not in found()
    monkeypatch.setattr(router, "routers", [Apart()])
    assert "to 'default' and their policies in celery_hardened to 'other'" in found()["E006"].msg


def test_tables_in_a_database_that_takes_none(project: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch) -> None:
    """E012: by the kind of database, which nobody has to be asked for."""
    project()
    assert "E012" not in found()
    monkeypatch.setattr(connections["default"], "vendor", "mysql")
    assert "database 'default', which is MySQL or MariaDB. They are made" in found()["E012"].msg
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    assert "which is oracle" in found()["E012"].msg
    for elsewhere in (Apart(), Nothing()):
        monkeypatch.setattr(router, "routers", [elsewhere])
        assert "E012" not in found()


def test_tables_that_are_never_made(project: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch) -> None:
    """E007, where letters need them."""
    monkeypatch.setattr(router, "routers", [Nothing()])
    project()
    assert "E007" not in found()
    project(hardened_dead_letter_store="django:other")
    assert "'other'" in found()["E007"].msg
    monkeypatch.setattr(router, "routers", [])
    assert "E007" not in found()


@pytest.mark.parametrize(
    "location",
    ["redis://127.0.0.1:6379", "redis://:hunter2@localhost/0", ["redis://replica:6379/0", "redis://localhost:6379/0"]],
)
def test_a_cache_in_the_brokers_database(project: Callable[..., Celery], location: Any) -> None:
    """E008: ``cache.clear()`` is FLUSHDB. The password is not repeated."""
    project()
    cache = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": location}
    with override_settings(CACHES={"default": cache}):
        message = found()["E008"]
    assert "(localhost:6379, database 0)" in message.msg
    assert "hunter2" not in message.msg
    for right in (
        {**cache, "LOCATION": "redis://localhost:6379/1"},
        {**cache, "OPTIONS": {"db": "3"}, "LOCATION": REDIS[:-2]},
    ):
        with override_settings(CACHES={"default": right}):
            assert "E008" not in found()


def test_connections_that_are_kept(project: Callable[..., Celery]) -> None:
    """W011."""
    app = project(CELERY_DB_REUSE_MAX=10)
    assert "for 10 tasks" in found()["W011"].msg
    app.conf["CELERY_DB_REUSE_MAX"] = None
    assert "W011" not in found()


def test_a_pool_that_is_made_anew_for_each_task(project: Callable[..., Celery], database: Callable[..., None]) -> None:
    """W012, in prefork workers, with how many connections that is."""
    app = project()
    assert "W012" not in found()
    database(OPTIONS={"pool": {"min_size": 2}})
    assert "each task opens 2 connections" in found()["W012"].msg
    database(OPTIONS={"pool": True})
    assert "each task opens 4 connections" in found()["W012"].msg
    app.conf.worker_pool = "threads"
    assert "W012" not in found()


# --- schedules -----------------------------------------------------------------------------------------------------


def test_a_django_celery_beat_that_is_too_old(project: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch) -> None:
    """E005."""
    project()
    for version, old in (("2.7.0", True), ("2.8.0", False), ("2.10.1", False), ("3.0rc1", False)):
        monkeypatch.setattr(django_celery_beat, "__version__", version)
        assert ("E005" in found()) is old, version


@pytest.mark.parametrize(
    "named", ["django_celery_beat.schedulers:DatabaseScheduler", "django", "redbeat.RedBeatScheduler", "no.such:Class"]
)
def test_a_scheduler_of_somebody_else(project: Callable[..., Celery], named: str) -> None:
    """W008."""
    project(beat_scheduler=named)
    assert repr(named) in found()["W008"].msg


@pytest.mark.parametrize(
    "named", ["hardened", "hardened-django", "celery_hardened.contrib.django.scheduler:DatabaseScheduler", None]
)
def test_a_scheduler_of_ours(project: Callable[..., Celery], named: str | None) -> None:
    """Also under its whole name; and without the setting, which ``-S`` may say."""
    project(**({"beat_scheduler": named} if named else {}))
    assert "W008" not in found()


def test_two_time_zones(project: Callable[..., Celery]) -> None:
    """W009, with how far they are apart at most; another name of the same clock is no other."""
    with override_settings(TIME_ZONE="Europe/Paris"):
        project()
        assert "up to 2 h apart" in found()["W009"].msg
        project(timezone="Europe/Madrid")
        assert "W009" not in found()
    with override_settings(TIME_ZONE="Etc/UTC"):
        project()
        assert "W009" not in found()
    with override_settings(TIME_ZONE="Europe/Lisbon"):
        project(timezone="UTC")
        assert "up to 1 h apart" in found()["W009"].msg


@pytest.mark.parametrize("use_tz", [True, False])
def test_times_with_and_without_a_zone(project: Callable[..., Celery], use_tz: bool) -> None:
    """W010."""
    project()
    with override_settings(USE_TZ=use_tz, DJANGO_CELERY_BEAT_TZ_AWARE=not use_tz):
        assert f"Set DJANGO_CELERY_BEAT_TZ_AWARE = {use_tz}" in str(found()["W010"].hint)
    with override_settings(USE_TZ=use_tz, DJANGO_CELERY_BEAT_TZ_AWARE=use_tz):
        assert "W010" not in found()


def test_nobody_sees_anything(project: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch) -> None:
    """I001: a note, not a warning."""
    project()
    assert "I001" not in found()
    from django.apps import apps

    installed = apps.is_installed
    monkeypatch.setattr(apps, "is_installed", lambda name: name != "django.contrib.admin" and installed(name))
    assert found()["I001"].level == checks.INFO


# --- production alone -------------------------------------------------------------------------------------------------


def test_a_dry_run(project: Callable[..., Celery]) -> None:
    """W014."""
    app = project(hardened_observe=True)
    assert "W014" not in found()
    assert "W014" in found(deploy=True)
    app.conf.hardened_observe = False
    assert "W014" not in found(deploy=True)


def test_eager_tasks(project: Callable[..., Celery]) -> None:
    """W015: right in tests, so ``check`` alone says nothing."""
    app = project(task_always_eager=True)
    assert "W015" not in found()
    assert "W015" in found(deploy=True)
    app.conf.task_always_eager = False
    assert "W015" not in found(deploy=True)


def test_letters_in_memory(project: Callable[..., Celery]) -> None:
    """W016."""
    app = project(hardened_dead_letter_store="memory")
    assert "W016" not in found()
    assert "W016" in found(deploy=True)
    app.conf.hardened_dead_letter_store = "redis"
    assert "W016" not in found(deploy=True)


@pytest.mark.parametrize("backend", ["django-db", "rpc://", "db+postgresql://localhost/results"])
def test_chords_that_fail_at_once(project: Callable[..., Celery], backend: str) -> None:
    """W013; not without results, and not where that is meant."""
    app = project(result_backend=backend)
    assert backend.partition("//")[0].rstrip(":") in found(deploy=True)["W013"].msg
    assert "localhost" not in found(deploy=True)["W013"].msg
    app.conf.hardened_park_chords = False
    assert "W013" not in found(deploy=True)
    for right in (REDIS, "rediss://localhost/0", None):
        project(result_backend=right)
        assert "W013" not in found(deploy=True)


def test_connections_kept_without_a_look(project: Callable[..., Celery], database: Callable[..., None]) -> None:
    """W017."""
    project()
    assert "W017" not in found(deploy=True)
    database(CONN_MAX_AGE=600)
    database("other", CONN_MAX_AGE=None)
    assert "'default' for 600 s, 'other' for ever" in found(deploy=True)["W017"].msg
    database(CONN_HEALTH_CHECKS=True)
    database("other", CONN_HEALTH_CHECKS=True)
    assert "W017" not in found(deploy=True)


def test_a_task_that_no_worker_starts_with(project: Callable[..., Celery]) -> None:
    """E009: what a worker would refuse, without starting one."""
    app = project()
    charge(app, base=HardenedTask)
    assert "E009" not in found(deploy=True)
    app = project()

    @app.task(name="shop.refund", shared=False)
    @idempotent("invoice")
    def refund(invoice: int) -> None: ...

    message = found(deploy=True)["E009"]
    assert "'shop.refund' is refused" in message.msg
    assert "base=HardenedTask" in message.msg


def test_modules_of_tasks_that_cannot_be_imported(project: Callable[..., Celery]) -> None:
    """E009, with the cause."""
    project(imports=["tests.support.no_such_module"])
    assert "no_such_module" in found(deploy=True)["E009"].msg
