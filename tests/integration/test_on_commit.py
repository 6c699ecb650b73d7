"""Publish on commit with real brokers, real workers and real databases, SQLite and PostgreSQL."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.db import transaction

from celery_hardened import Hardening, Query
from celery_hardened.errors import DuplicateTaskError, PublishFailedError
from celery_hardened.metrics.catalogue import PUBLISHED
from tests.fixtures.processes import LoadProject, StartProcess, StartWorker
from tests.support import django_project
from tests.support.broker import Broker
from tests.support.notes import notes
from tests.support.on_commit_app import ON_COMMIT
from tests.support.postgres import Postgres
from tests.support.tcp_proxy import TcpProxy
from tests.support.until import until

pytestmark = pytest.mark.integration

on_redis = pytest.mark.parametrize("broker", ["redis"], indirect=True)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """No connection of this process outlives the test."""
    django_project.configure()
    yield
    django_project.close_all()


def looks(out: Path) -> dict[str, str]:
    """Task ids of the looks, and whether they found their row."""
    lines = [line.split() for line in notes(out, "looks")]
    assert len({words[0] for words in lines}) == len(lines), "a task ran twice"
    return dict((words[0], words[1]) for words in lines)


def count_rows(number: str) -> int:
    from tests.support.django_shop.models import Invoice

    return int(Invoice.objects.filter(number=number).count())


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_every_task_finds_its_row_and_no_other_comes(
    load_project: LoadProject, start_worker: StartWorker, out: Path, unique: str, pool: str
) -> None:
    """H129: sixty transactions, every third rolled back, against a worker that waits for messages:
    each task finds its row, and those of rolled back transactions never come."""
    start_worker(ON_COMMIT, pool=pool, env=django_project.environment())
    project = load_project(ON_COMMIT)
    sent = set()
    for number in range(60):
        with transaction.atomic():
            result = project.look.delay(project.invoice(f"{unique}-{number}"))
            if number % 3 == 0:
                transaction.set_rollback(True)
            else:
                sent.add(result.id)
    last = project.look.delay(0)
    until(lambda: last.id in looks(out), within=60, what="the last task to run")
    until(lambda: len(looks(out)) == len(sent) + 1, within=60, what="all tasks to run")
    found = looks(out)
    assert found.pop(last.id) == "False"
    assert set(found) == sent
    assert set(found.values()) == {"True"}


@pytest.mark.parametrize("task", ["bill", "retries_inside"])
def test_a_retry_from_inside_a_transaction_is_not_lost(
    load_project: LoadProject, start_worker: StartWorker, out: Path, unique: str, task: str
) -> None:
    """The task's own publishes are dropped with each failed attempt, and its retry is not: a retry that
    waited for the commit would be rolled back, and the task would be gone."""
    start_worker(ON_COMMIT, env=django_project.environment())
    project = load_project(ON_COMMIT)
    result = getattr(project, task).delay(unique, *([2] if task == "bill" else []))
    result.get(timeout=120)
    (billed,) = notes(out, "billed")
    sent = billed.split()[1]
    until(lambda: sent in looks(out), within=60, what="what the last attempt published")
    assert looks(out) == {sent: "True"}
    assert count_rows(unique) == 1


def test_a_replacement_from_inside_a_transaction_is_not_lost(
    load_project: LoadProject, start_worker: StartWorker, out: Path, unique: str
) -> None:
    """``raise self.replace(...)`` rolls back, and the replacement runs; what was published besides does not."""
    start_worker(ON_COMMIT, env=django_project.environment())
    project = load_project(ON_COMMIT)
    assert project.replaces_inside.delay(unique).get(timeout=120) == 3
    assert notes(out, "counts") == ["3 True"]
    assert looks(out) == {}
    assert count_rows(unique) == 0


def test_a_chord_from_inside_a_transaction_completes(
    load_project: LoadProject, start_worker: StartWorker, out: Path, unique: str
) -> None:
    """From the body of a task and from a producer; after a rollback none of it runs."""
    start_worker(ON_COMMIT, env=django_project.environment())
    project = load_project(ON_COMMIT)
    project.total.delay(unique)
    until(lambda: notes(out, "counts") == ["3 True"], within=120, what="the chord of the task")

    with transaction.atomic():
        pks = [project.invoice(f"{unique}-{number}") for number in range(2)]
        result = project.chord([project.look.si(pk) for pk in pks], project.count.s()).apply_async()
    assert result.get(timeout=120) == 2

    before = len(looks(out))
    with transaction.atomic():
        project.chord([project.look.si(pk) for pk in pks], project.count.s()).apply_async()
        transaction.set_rollback(True)
    last = project.look.delay(0)
    until(lambda: last.id in looks(out), within=60, what="the last task to run")
    assert len(looks(out)) == before + 1


@on_redis
def test_postgres(
    load_project: LoadProject, start_worker: StartWorker, out: Path, unique: str, postgres: Postgres
) -> None:
    """Rows of a PostgreSQL transaction are there for the worker, which uses that server itself."""
    url = postgres.database()
    django_project.add_postgres(url)
    try:
        env = {**django_project.environment(postgres_url=url), "USING": "postgres"}
        start_worker(ON_COMMIT, env=env)
        project = load_project(ON_COMMIT, env={"USING": "postgres"})
        with transaction.atomic(using="postgres"):
            first = project.look.delay(project.invoice(unique))
        project.bill.delay(unique, 1).get(timeout=120)
        until(lambda: len(looks(out)) == 2, within=60, what="both looks")
        assert looks(out)[first.id] == "True"
        assert set(looks(out).values()) == {"True"}
    finally:
        django_project.forget("postgres")


def through(broker: Broker, proxy: TcpProxy) -> dict[str, str]:
    return {"BROKER_URL": broker.at(proxy.port).url}


def test_a_broker_that_comes_back_gets_it(
    load_project: LoadProject,
    start_worker: StartWorker,
    start_proxy: Callable[[int], TcpProxy],
    broker: Broker,
    out: Path,
    unique: str,
) -> None:
    """The broker refuses connections while the transaction commits, and is there again a second later."""
    start_worker(ON_COMMIT, env=django_project.environment())
    proxy = start_proxy(broker.port)
    project = load_project(ON_COMMIT, env=through(broker, proxy))
    project.look.delay(0)
    with transaction.atomic():
        ids = [project.look.delay(project.invoice(unique)).id for _ in range(3)]
        proxy.down()
        threading.Timer(1.0, proxy.heal).start()
    until(lambda: len(looks(out)) == 4, within=60, what="all tasks to run")
    assert all(looks(out)[one] == "True" for one in ids)


def test_what_the_broker_never_took_is_redriven(
    load_project: LoadProject,
    start_worker: StartWorker,
    start_proxy: Callable[[int], TcpProxy],
    broker: Broker,
    out: Path,
    unique: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The time is over: the caller gets an error, the letters ``unsent`` are in Redis, and a redrive sends
    them under their own ids, once each."""
    proxy = start_proxy(broker.port)
    project = load_project(ON_COMMIT, env={**through(broker, proxy), "PUBLISH_TIMEOUT": "5"})
    project.look.delay(0)
    results = []
    with pytest.raises(PublishFailedError) as failed, transaction.atomic():  # noqa: PT012
        results += [project.look.delay(project.invoice(unique)) for _ in range(3)]
        proxy.down()
    assert failed.value.tasks == [f"proj.look[{one.id}]" for one in results]
    assert count_rows(unique) == 3
    critical = [one for one in caplog.records if one.levelno == logging.CRITICAL]
    assert [one.task_id for one in critical] == [one.id for one in results]  # type: ignore[attr-defined]

    proxy.heal()
    start_worker(ON_COMMIT, env=django_project.environment())
    report = Hardening.expect(project.app).redrive(Query(reason="unsent"), by="ann", why="it is back")
    assert (report.sent, report.refused, report.failed) == (3, {}, {})
    until(lambda: len(looks(out)) == 4, within=60, what="all tasks to run")
    assert {looks(out)[one.id] for one in results} == {"True"}


@on_redis
def test_a_chord_whose_members_were_not_sent_completes_after_a_redrive(
    load_project: LoadProject,
    start_worker: StartWorker,
    start_proxy: Callable[[int], TcpProxy],
    broker: Broker,
    out: Path,
    unique: str,
) -> None:
    """Their letters are parked, so that the chord is kept for them."""
    proxy = start_proxy(broker.port)
    project = load_project(ON_COMMIT, env={**through(broker, proxy), "PUBLISH_TIMEOUT": "5"})
    project.look.delay(0)
    with pytest.raises(PublishFailedError) as failed, transaction.atomic():  # noqa: PT012
        pks = [project.invoice(f"{unique}-{number}") for number in range(3)]
        result = project.chord([project.look.si(pk) for pk in pks], project.count.s()).apply_async()
        proxy.down()
    assert len(failed.value.tasks) == 3

    proxy.heal()
    hardening = Hardening.expect(project.app)
    assert [one.state for one in hardening.dead_letters.find(Query()).letters] == ["parked"] * 3
    start_worker(ON_COMMIT, env=django_project.environment())
    report = hardening.redrive(Query(reason="unsent"), by="ann", why="it is back")
    assert (report.sent, report.refused, report.failed) == (3, {}, {})
    assert result.get(timeout=120) == 3
    assert notes(out, "counts") == ["3 True"]


@on_redis
def test_duplicates_are_decided_at_the_commit(
    load_project: LoadProject, start_worker: StartWorker, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A rollback takes no key. ``return`` leads to the first task, ``raise`` is a line and a count."""
    project = load_project(ON_COMMIT)
    metrics = Hardening.expect(project.app).metrics
    metrics.keep_here()
    with transaction.atomic():
        project.once.delay(1)
        transaction.set_rollback(True)
    with transaction.atomic():
        first = project.once.delay(1)
        twin = project.once.delay(1)
        assert first.id != twin.id
    assert twin.id == first.id
    with transaction.atomic():
        strict = project.strictly_once.delay(1)
        refused = project.strictly_once.delay(1)
    with pytest.raises(DuplicateTaskError):
        refused.get(timeout=1)
    counted = metrics.registry.values(PUBLISHED)
    assert {result: n for (task, _, result), n in counted.items() if task == project.strictly_once.name} == {
        "deferred": 2,
        "published": 1,
        "deduplicated": 1,
    }
    assert refused.id in str([vars(one).get("task_id") for one in caplog.records])

    start_worker(ON_COMMIT, env=django_project.environment())
    for result in (first, twin, strict):
        result.get(timeout=120)
    assert notes(out, "once") == ["1"]
    assert notes(out, "strictly_once") == ["1"]


@on_redis
def test_a_process_that_dies_between_commit_and_publish_loses_it(
    load_project: LoadProject, start_process: StartProcess, start_worker: StartWorker, out: Path, unique: str
) -> None:
    """What is not promised, as documented: the row is there and the task never comes. An outbox would keep it."""
    program = f"""if True:
        import os, signal
        from proj import *
        with transaction.atomic():
            transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))
            look.delay(invoice({unique!r}))
    """
    process = start_process(ON_COMMIT, "python", "-c", program, env=django_project.environment())
    until(lambda: not process.running, within=60, what="the process to die")
    assert process.returncode == -9
    assert count_rows(unique) == 1

    start_worker(ON_COMMIT, env=django_project.environment())
    project: ModuleType = load_project(ON_COMMIT)
    last: Any = project.look.delay(0)
    until(lambda: last.id in looks(out), within=60, what="the last task to run")
    assert len(looks(out)) == 1
