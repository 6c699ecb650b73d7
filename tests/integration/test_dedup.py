"""``@deduplicate`` from a publish to the end of its task, with workers, on both brokers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from celery import chain, chord, group
from celery.signals import before_task_publish
from kombu.exceptions import OperationalError

from celery_hardened import DuplicateTaskError, Hardening, Query, StoreUnavailableError
from celery_hardened.pipeline.windows import windows
from tests.fixtures.processes import LoadProject, StartProcess, StartWorker
from tests.support.broker import Broker
from tests.support.client import listening
from tests.support.letters import letter_of
from tests.support.notes import notes
from tests.support.ports import free_port
from tests.support.tcp_proxy import TcpProxy
from tests.support.until import until

DEDUP = (Path(__file__).parents[1] / "support" / "dedup_app.py").read_text()

#: Of tests that wait for one to end. A worker may stand still for some seconds on a busy machine.
LEASE = 4.0
SHORT = {"LEASE": str(LEASE)}

on_redis = pytest.mark.parametrize("broker", ["redis"], indirect=True)


def held(project: ModuleType) -> dict[str, str]:
    """Task id by key."""
    return {one.key: one.task_id for one in windows(Hardening.expect(project.app)).held()}


def free(project: ModuleType, task_id: str, *, within: float = 30.0) -> None:
    """Wait until *task_id* holds no key."""
    until(lambda: task_id not in held(project).values(), within=within, what=f"the key of {task_id} is free")


def starts(out: Path, task_id: str) -> int:
    return sum(1 for line in notes(out, "starts") if line.endswith(task_id))


def begun(out: Path, task_id: str, *, times: int = 1) -> None:
    until(lambda: starts(out, task_id) >= times, within=60, what=f"start {times} of {task_id}")


def opened(out: Path, name: str) -> None:
    (out / name).touch()


# --- until when ---------------------------------------------------------------------------------------


def test_a_key_is_held_until_its_start_its_finish_or_its_window(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """In the queue, in the body, and after it: three tasks that differ in ``until`` alone (H125, H126)."""
    project = load_project(DEDUP)
    first = {
        "until_start": project.until_start.delay("a", "gate"),
        "work": project.work.delay("a", "gate"),
        "window": project.window.delay("a"),
    }
    for name, result in first.items():
        assert getattr(project, name).delay("a").id == result.id, f"{name} waits in the queue"
        assert project.app.send_task(f"proj.{name}", ("a",)).id == result.id, "by name too"

    start_worker(DEDUP, concurrency=2)
    begun(out, first["until_start"].id)
    begun(out, first["work"].id)
    free(project, first["until_start"].id)
    assert project.work.delay("a").id == first["work"].id, "its body runs"
    second = project.until_start.delay("a")
    assert second.id != first["until_start"].id
    opened(out, "gate")

    assert first["work"].get(timeout=60) == "a"
    free(project, first["work"].id)
    assert project.work.delay("a").get(timeout=60) == "a"
    assert first["window"].get(timeout=60) == "a"
    assert project.window.delay("a").id == first["window"].id, "it has ended, and its window has not"
    assert second.get(timeout=60) == "a"


@on_redis
def test_a_window_ends_in_time(start_worker: StartWorker, load_project: LoadProject) -> None:
    """A second later the next one is sent."""
    env = {"WINDOW": "2"}
    project = load_project(DEDUP, env=env)
    start_worker(DEDUP, env=env)
    first = project.window.delay("a")
    assert first.get(timeout=60) == "a"
    second = until(lambda: (r := project.window.delay("a")).id != first.id and r, what="the window to end")
    assert second.get(timeout=60) == "a"


def test_what_a_duplicate_gets(load_project: LoadProject) -> None:
    """The first one's result, an error that names it, or nothing; and nothing is sent."""
    project = load_project(DEDUP)
    assert project.work.delay("a").id == project.work.delay("a").id
    first = project.strict.delay("a")
    with pytest.raises(DuplicateTaskError) as caught:
        project.strict.delay("a")
    assert caught.value.task_id == first.id
    assert project.dropped.delay("a") is not None
    assert project.dropped.delay("a") is None
    with project.app.connection_for_write() as connection:
        queue = project.app.amqp.queues[project.app.conf.task_default_queue](connection)
        count = until(
            lambda: (found := queue.queue_declare(passive=True).message_count) >= 3 and found,
            what="three messages in the queue",
        )
    assert count == 3


#: Enqueues of each producer: 10,000 is the whole proof, a tenth of it runs every time.
ENQUEUES = int(os.environ.get("DEDUP_ENQUEUES", "1000"))

PRODUCERS = 16
KEYS = 100

#: Sixteen children of one process, which connect after the fork; they begin together.
RACE = """
import os, sys, time
import proj

enqueues, producers, keys = map(int, sys.argv[1:])
together = time.monotonic() + 1.0
children = []
for number in range(producers):
    child = os.fork()
    if child == 0:
        while time.monotonic() < together:
            time.sleep(0.001)
        for turn in range(enqueues):
            key, mine = (turn * 7 + number) % keys, f"{number}-{turn}"
            before = time.monotonic()
            if proj.window.apply_async((key,), task_id=mine).id == mine:
                proj.note("accepted", key, before, time.monotonic())
        os._exit(0)
    children.append(child)
failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
proj.note("done", failed)
"""


@on_redis
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seconds", [600.0, 1.0])
def test_of_sixteen_producers_one_is_accepted_in_each_window(
    start_process: StartProcess, load_project: LoadProject, out: Path, seconds: float
) -> None:
    """
    Sixteen processes publish a hundred keys, all of them at once: in a long window each key is
    accepted once; in short ones no two of a key are nearer than a window, and none is left out.
    """
    env = {"WINDOW": str(seconds)}
    start_process(DEDUP, "python", "-c", RACE, str(ENQUEUES), str(PRODUCERS), str(KEYS), env=env)
    assert until(lambda: notes(out, "done"), within=600, what="the producers to be done") == ["0"]
    accepted: dict[int, list[tuple[float, float]]] = {}
    for line in notes(out, "accepted"):
        key, before, after = line.split()
        accepted.setdefault(int(key), []).append((float(before), float(after)))
    assert set(accepted) == set(range(KEYS))
    begun = min(before for times in accepted.values() for before, _ in times)
    ended = max(after for times in accepted.values() for _, after in times)
    for times in accepted.values():
        times.sort()
        # A window begins at some moment between `before` and `after`.
        for (before, _), (_, after) in pairwise(times):
            assert after - before >= seconds
        assert len(times) <= (ended - begun) / seconds + 1
    if seconds == 600.0:
        assert sum(map(len, accepted.values())) == KEYS


# --- retries ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["flaky", "explicit"])
def test_a_task_passes_its_own_key_on_every_retry(
    start_worker: StartWorker, load_project: LoadProject, out: Path, name: str
) -> None:
    """By ``autoretry_for`` and by ``self.retry()``; no twin comes in between, and the end frees it (H117)."""
    project = load_project(DEDUP)
    start_worker(DEDUP)
    result = getattr(project, name).delay("a")
    assert result.get(timeout=60) == "a"
    assert starts(out, result.id) == 3
    assert notes(out, "twins") == [result.id] * 3
    free(project, result.id)
    assert held(project) == {}


def test_with_idempotent_beside_it_there_is_one_effect_and_one_success(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """Three transient failures, then success; a twin that comes after it gets its result, and does nothing."""
    project = load_project(DEDUP)
    start_worker(DEDUP)
    result = project.both.delay("a")
    assert result.get(timeout=60) == "a"
    assert starts(out, result.id) == 4
    assert notes(out, "twins") == [result.id] * 4
    free(project, result.id)
    later = project.both.delay("a")
    assert later.id != result.id
    assert later.get(timeout=60) == "a"
    free(project, later.id)
    assert notes(out, "effects") == ["a"]


@on_redis
def test_a_retry_of_a_task_that_acks_early_holds_its_key_for_longer_than_a_lease(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    project = load_project(DEDUP, env=SHORT)
    start_worker(DEDUP, env=SHORT)
    result = project.early_flaky.delay("a", "gate")
    begun(out, result.id)
    while starts(out, result.id) < 2:
        assert project.early_flaky.delay("a").id == result.id
        time.sleep(0.1)
    opened(out, "gate")
    assert result.get(timeout=60) == "a"
    free(project, result.id)


# --- every end ----------------------------------------------------------------------------------------


def test_every_end_frees_the_key(
    start_worker: StartWorker, load_project: LoadProject, out: Path, subtests: pytest.Subtests
) -> None:
    """Expired, revoked, a dead letter of every kind, a lost child: after each a new task is accepted."""
    project = load_project(DEDUP)
    expired = project.work.apply_async(("expired",), expires=0.1)
    short = project.window.apply_async(("expired",), expires=0.1)
    for result in (expired, short):
        assert result.id in held(project).values()
    past = time.monotonic() + 0.3
    until(lambda: time.monotonic() > past, what="their expiry")
    worker = start_worker(DEDUP, concurrency=2)
    terminated = project.work.delay("terminated", "never")
    begun(out, terminated.id)
    assert project.work.delay("terminated").id == terminated.id
    project.app.control.revoke(terminated.id, terminate=True, signal="SIGKILL")
    ends = {
        "expired": expired,
        "expired in a window": short,
        "terminated": terminated,
        "broken in a window": project.broken.delay("a"),
        "ignored": project.ignoring.delay("a"),
        "rejected": project.rejecting.delay("a"),
        "lost": project.early_killer.delay("a"),
        "poison": project.killer.delay("a", 99),
        "hard limit": project.hard_limit.delay("a"),
    }
    for name, result in ends.items():
        with subtests.test(name):
            free(project, result.id, within=60)
    assert worker.running


def test_a_task_that_is_revoked_in_the_queue_frees_its_key(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    project = load_project(DEDUP)
    start_worker(DEDUP, concurrency=1)
    first = project.work.delay("first", "gate")
    begun(out, first.id)
    waiting = project.work.delay("waiting")
    project.app.control.revoke(waiting.id, reply=True, timeout=30, limit=1)
    opened(out, "gate")
    free(project, waiting.id)
    assert starts(out, waiting.id) == 0


@on_redis
def test_a_message_that_no_worker_knows_frees_its_key(start_worker: StartWorker, load_project: LoadProject) -> None:
    """It is a dead letter ``unknown_task``; the header says what to free."""
    project = load_project(DEDUP)
    result = project.new_here.delay("a")
    start_worker(DEDUP, env={"WITHOUT_NEW": "1"})
    assert letter_of(project, result.id).letter.reason == "unknown_task"
    free(project, result.id)


FORGED: dict[str, dict[str, Any]] = {
    "no text of a window": {"dedup": ["\ud800", "finish"]},
    "no text of a start": {"dedup": ["\ud800", "start"]},
    "no text of a key": {"key": "\ud800"},
    "too long": {"dedup": ["x" * 1_000_000, "window"], "key": "x" * 1_000_000},
}


def forge(project: ModuleType, name: str, *args: Any, **headers: Any) -> None:
    """Publish a message as anybody can, with no app to put its header right."""
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    headers = {"task": name, "lang": "py", "retries": 0, "root_id": headers["id"], **headers}
    with project.app.connection_for_write() as connection, connection.Producer() as producer:
        producer.publish(
            (args, {}, embed),
            serializer="json",
            exchange="",
            routing_key=project.app.conf.task_default_queue,
            headers=headers,
            correlation_id=headers["id"],
        )


@on_redis
def test_a_forged_mark_ends_no_worker(
    start_worker: StartWorker, load_project: LoadProject, out: Path, subtests: pytest.Subtests
) -> None:
    """Anybody who may publish can write a header. Valid, expired and revoked messages with marks that
    nothing can encode are what they are without them."""
    project = load_project(DEDUP)
    worker = start_worker(DEDUP, concurrency=1)
    listening(project.app)
    tasks = [(name, kind, str(uuid4())) for name in FORGED for kind in ("expired", "revoked", "valid", "broken")]
    revoked = [task_id for _, kind, task_id in tasks if kind == "revoked"]
    assert project.app.control.revoke(revoked, reply=True, timeout=30, limit=1), "no worker has heard of it"
    for name, kind, task_id in tasks:
        forge(
            project,
            "proj.broken" if kind == "broken" else "proj.plain",
            name,
            id=task_id,
            expires="2020-01-01T00:00:00+00:00" if kind == "expired" else None,
            hardened={"v": 1, **FORGED[name]},
        )
    states = {"expired": "REVOKED", "revoked": "REVOKED", "valid": "SUCCESS", "broken": "FAILURE"}
    for name, kind, task_id in tasks:
        with subtests.test(name, kind=kind):
            result = project.app.AsyncResult(task_id)
            until(lambda result=result: result.ready() or not worker.running, within=60, what=f"the end of {kind}")
            assert result.state == states[kind]
    assert worker.running
    assert project.work.delay("after").get(timeout=60) == "after"


@on_redis
def test_a_task_that_is_replaced_by_one_of_another_key_leaves_none_behind(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """The replacement has its id, and gives its key back at its own end, in whichever process it runs."""
    project = load_project(DEDUP)
    start_worker(DEDUP, concurrency=1)
    results = [project.replaced.delay(f"a{number}") for number in range(5)]
    assert [result.get(timeout=60) for result in results] == [f"a{number}" for number in range(5)]
    until(lambda: held(project) == {}, within=30, what="no key is held")


@on_redis
def test_a_process_that_goes_after_its_task_has_freed_its_key(
    start_worker: StartWorker,
    load_project: LoadProject,
    out: Path,
    start_proxy: Callable[[int], TcpProxy],
    records_url: str,
) -> None:
    """Redis is away while the last task of a child ends, and comes back within the patience of a letter."""
    proxy, env = through(records_url, start_proxy)
    conf = {
        "worker_max_tasks_per_child": 1,
        "hardened_dead_letter_write_timeout": 60.0,
        "broker_transport_options": {"socket_timeout": 0.3},
    }
    start_worker(DEDUP, concurrency=1, env={**env, "CONF": repr(conf)})
    project = load_project(DEDUP)
    result = project.work.delay("a", "gate")
    begun(out, result.id)
    proxy.down()
    opened(out, "gate")
    back = time.monotonic() + 5.0
    until(lambda: time.monotonic() > back, what="Redis to come back")
    proxy.heal()
    assert result.get(timeout=60) == "a"
    free(project, result.id)


# --- deaths -------------------------------------------------------------------------------------------


def test_a_task_whose_process_died_keeps_its_key_and_starts_again(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """It is the same job; its end frees the key."""
    project = load_project(DEDUP)
    start_worker(DEDUP)
    result = project.killer.delay("a", 2, "gate")
    while starts(out, result.id) < 3:
        assert project.killer.delay("a").id == result.id
        time.sleep(0.05)
    opened(out, "gate")
    assert result.get(timeout=60) == "a"
    free(project, result.id)


@pytest.mark.chaos
def test_a_killed_worker_leaves_no_key_behind(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """
    Acked late, the message comes back, keeps its key and frees it at its end. Acked early it is
    gone, and its key is free a lease later (H115).
    """
    project = load_project(DEDUP, env=SHORT)
    worker = start_worker(DEDUP, concurrency=2, env=SHORT)
    late = project.work.delay("a", "gate")
    early = project.early.delay("a", "gate")
    begun(out, late.id)
    begun(out, early.id)
    until(lambda: left(project, early.id) <= LEASE, what="the key of the task that acked early lives on a lease")
    worker.kill_group()
    free(project, early.id, within=LEASE * 5)
    assert project.work.delay("a").id == late.id

    start_worker(DEDUP, env=SHORT)
    begun(out, late.id, times=2)
    assert project.work.delay("a").id == late.id
    opened(out, "gate")
    assert late.get(timeout=60) == "a"
    free(project, late.id)


def left(project: ModuleType, task_id: str) -> float:
    return next((one.left for one in windows(Hardening.expect(project.app)).held() if one.task_id == task_id), 0.0)


@on_redis
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_task_that_acks_early_is_renewed_while_it_runs(
    start_worker: StartWorker, load_project: LoadProject, out: Path, pool: str
) -> None:
    """For two leases, at every moment (H118), by a thread or a greenlet."""
    project = load_project(DEDUP, env=SHORT)
    start_worker(DEDUP, env=SHORT, pool=pool)
    result = project.early.delay("a", "gate")
    begun(out, result.id)
    end = time.monotonic() + LEASE * 2
    while time.monotonic() < end:
        assert project.early.delay("a").id == result.id
        time.sleep(0.05)
    opened(out, "gate")
    assert result.get(timeout=60) == "a"
    free(project, result.id)


# --- dead letters -------------------------------------------------------------------------------------


def test_a_redrive_passes(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """Though a twin was accepted since; and it frees no key but its own."""
    project = load_project(DEDUP)
    start_worker(DEDUP, concurrency=1)
    first = project.fixable.delay("a")
    letter = letter_of(project, first.id)
    free(project, first.id)
    opened(out, "fixed")
    # The one place of the worker is taken, so the twin waits, with its key, until the redrive was sent.
    busy = project.work.delay("busy", "gate")
    begun(out, busy.id)
    twin = project.fixable.delay("a")
    assert twin.id != first.id
    Hardening.expect(project.app).redrive(Query(ids=(letter.letter.id,)), by="test", why="fixed")
    opened(out, "gate")
    begun(out, first.id, times=2)
    assert twin.get(timeout=60) == "a"
    # Another result each time: one that has seen the failure before the redrive keeps it.
    until(lambda: project.app.AsyncResult(first.id).state == "SUCCESS", what="the redriven task to succeed")
    until(lambda: held(project) == {}, what="no key is held")


# --- workflows ----------------------------------------------------------------------------------------


def test_workflows_with_duplicates_complete(start_worker: StartWorker, load_project: LoadProject) -> None:
    """
    Twins in a group, a chord's header and body, and a chain, of a task that raises for duplicates,
    while another task has the key: nothing is half sent, nothing waits for ever.
    """
    project = load_project(DEDUP)
    strict, total = project.strict, project.total
    holder = strict.apply_async((1,), countdown=3600)
    running = [
        group(strict.s(1), strict.s(1), strict.s(2))(),
        chord([strict.s(1), strict.s(1)])(total.s()),
        chord([strict.s(2), strict.s(2)])(strict.si(1)),
        chain(strict.si(1), strict.si(1), strict.si(1))(),
        strict.apply_async((1,), link=strict.si(1)),
    ]
    start_worker(DEDUP, concurrency=2)
    assert [result.get(timeout=90) for result in running] == [[1, 1, 2], 2, 1, 1, 1]
    with pytest.raises(DuplicateTaskError):
        strict.delay(1)
    until(lambda: set(held(project).values()) == {holder.id}, what="only the one that waits holds a key")


# --- publishes that fail ------------------------------------------------------------------------------


def test_a_publish_that_sent_nothing_frees_its_key(load_project: LoadProject, broker: Broker) -> None:
    """Arguments that cannot be encoded, and a broker that refuses the connection."""
    project = load_project(DEDUP)
    with pytest.raises(Exception, match="JSON serializable"):
        project.work.delay("a", object())
    assert held(project) == {}
    nobody = project.app.connection_for_write().clone(port=free_port())
    with pytest.raises(OperationalError), nobody:
        project.work.apply_async(("a",), connection=nobody)
    assert held(project) == {}
    assert project.work.delay("a").id in held(project).values()


def test_a_publish_that_may_have_arrived_keeps_its_key_for_a_lease(
    load_project: LoadProject, broker: Broker, start_proxy: Callable[[int], TcpProxy]
) -> None:
    """Its message is sent, and the connection breaks before anything is heard of it."""
    proxy = start_proxy(broker.port)
    project = load_project(DEDUP, env={**SHORT, "BROKER_URL": broker.at(proxy.port).url})
    project.work.delay("warm")
    proxy.silence("down")
    breaks = threading.Timer(1.0, proxy.heal)

    def sends(**_: Any) -> None:
        breaks.start()  # not before: this process may stand still until then, and the publish would be a good one

    before_task_publish.connect(sends)
    try:
        with pytest.raises(OperationalError):
            project.work.apply_async(("a",), task_id="t1")
    finally:
        before_task_publish.disconnect(sends)
    breaks.join()
    assert 0 < left(project, "t1") <= LEASE
    assert project.work.delay("a").id == "t1"
    free(project, "t1")
    assert project.work.delay("a").id != "t1"


def through(url: str, start_proxy: Callable[[int], TcpProxy]) -> tuple[TcpProxy, dict[str, str]]:
    """A proxy in front of the records, and the environment that leads through it."""
    port = int(url.rpartition(":")[2].partition("/")[0])
    proxy = start_proxy(port)
    return proxy, {"RECORDS_URL": url.replace(str(port), str(proxy.port))}


@on_redis
def test_without_its_store_a_publish_is_refused(
    load_project: LoadProject, broker: Broker, start_proxy: Callable[[int], TcpProxy], records_url: str
) -> None:
    """Nothing is sent, and no key stays behind though the answer alone was lost."""
    proxy, env = through(records_url, start_proxy)
    project = load_project(DEDUP, env={**env, "CONF": "{'broker_transport_options': {'socket_timeout': 0.5}}"})
    project.work.delay("warm")
    proxy.silence("down")
    with pytest.raises(StoreUnavailableError):
        project.work.apply_async(("a",), task_id="t1")
    proxy.heal()
    free(project, "t1")
    assert project.work.delay("a").id != "t1"
