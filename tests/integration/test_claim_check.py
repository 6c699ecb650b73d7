"""Large arguments with real brokers and workers, killed at the worst moments."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import ModuleType

import pytest
from celery import chain, chord, group
from redis import Redis

from celery_hardened import Hardening, Query
from celery_hardened.claim_check.contract import ENDED
from celery_hardened.pipeline import payload
from tests.fixtures.processes import LoadProject, StartProcess, StartWorker
from tests.support.letters import letter_of, letters
from tests.support.notes import notes
from tests.support.until import until

APP = """
import os, signal, zlib
from pathlib import Path

from celery import Celery
from celery_hardened import HardenedTask, harden
from celery_hardened.claim_check.file import FilePayloadStore
from tests.support.notes import note

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_payload_store=os.environ.get("PAYLOADS") or Path(os.environ["OUT"], "payloads").as_uri(),
    hardened_retry_backoff=0.1,
    hardened_retry_floor=0.05,
    hardened_death_delay=0.1,
    hardened_lease=float(os.environ.get("LEASE", "30")),
    broker_transport_options={"visibility_timeout": 60, "unacked_restore_interval": 1, "unacked_restore_throttle": 1},
)
harden(app)


def once(word):
    try:
        Path(os.environ["OUT"], word).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@app.task(base=HardenedTask, bind=True, max_retries=3, log_args=("name",))
def work(self, *args, name="", fails=0, kills=False):
    text = "".join(args)
    note("starts", name, self.request.retries, len(text), zlib.crc32(text.encode()))
    if self.request.retries < fails:
        raise ConnectionError("gateway down")
    if kills and once("killed"):
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return name


@app.task(base=HardenedTask)
def result(size):
    return "r" * size


@app.task(base=HardenedTask)
def fixable(text, name=""):
    note("starts", name, 0, len(text))
    if not Path(os.environ["OUT"], "fixed").exists():
        raise ValueError("not fixed yet")
    return name


def kill_after_the_end():
    finish = FilePayloadStore.finish

    def finish_and_die(self, name, *, max_age):
        finish(self, name, max_age=max_age)
        if once("killed after the end"):
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    FilePayloadStore.finish = finish_and_die


if os.environ.get("KILL_AFTER_THE_END"):
    kill_after_the_end()
"""

#: Of workers that are killed: what they held is waited for.
SHORT = {"LEASE": "4"}

SIZE = 2_000_000
LARGE = "x" * SIZE


def runs(out: Path, name: str) -> list[str]:
    return [line for line in notes(out, "starts") if line.split()[0] == name]


def alive(out: Path) -> list[Path]:
    """Payloads that still hold data."""
    return [path for path in (out / "payloads").glob("*") if path.stat().st_size]


def stored(out: Path) -> list[Path]:
    return list((out / "payloads").glob("*"))


def largest_message(project: ModuleType, queue: str) -> int:
    """Of those that wait in a Redis broker."""
    client = Redis.from_url(project.app.conf.broker_url)
    return max(len(one) for one in client.lrange(queue, 0, -1))


@pytest.mark.integration
def test_two_megabytes_anywhere(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """
    In a call, a callback, later links of a chain, members of a group inside it and a chord's body, and as
    a chain's result: everything runs once with what it was sent, and nothing of it is left but the
    callback's, which other tasks might have shared.
    """
    project = load_project(APP)
    work = project.work
    work.apply_async([LARGE], {"name": "call"}, link=work.si(LARGE, name="callback"))
    chain(
        work.si(LARGE, name="first"),
        work.si(LARGE, name="second"),
        group(work.si(LARGE, name="a"), work.si(LARGE, name="b")),
        work.si(LARGE, name="joined"),
    ).apply_async()
    chord([work.si("small", name="c"), work.si("small", name="d")], work.si(LARGE, name="body")).apply_async()
    (project.result.s(SIZE) | work.s(name="of a result")).apply_async()
    start_worker(APP)

    names = {"call", "callback", "first", "second", "a", "b", "joined", "body", "of"}
    until(lambda: names <= {line.split()[0] for line in notes(out, "starts")}, within=60, what="everything to run")
    large = [line.split() for line in notes(out, "starts") if line.split()[0] not in ("c", "d")]
    assert len(large) == len(names)
    assert {words[-2] for words in large} == {str(SIZE)}
    until(lambda: len(alive(out)) == 1, what="all payloads but the callback's to be removed")
    assert letters(project) == []


@pytest.mark.integration
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_no_message_is_large(load_project: LoadProject, environment: dict[str, str], out: Path) -> None:
    """What the broker gets of a call with two megabytes is less than two kilobytes."""
    project = load_project(APP)
    project.work.apply_async([LARGE], {"name": "call"})
    assert largest_message(project, environment["QUEUE"]) < 2000
    assert len(alive(out)) == 1


@pytest.mark.integration
def test_retries_keep_the_payload(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """Three attempts, one upload, and it is removed by the last."""
    project = load_project(APP)
    start_worker(APP)
    result = project.work.apply_async([LARGE], {"name": "retried", "fails": 2})
    assert result.get(timeout=60) == "retried"
    assert [line.split()[1:3] for line in runs(out, "retried")] == [[str(n), str(SIZE)] for n in range(3)]
    until(lambda: alive(out) == [] and len(stored(out)) == 1, what="the one payload to be removed")


@pytest.mark.integration
def test_a_dead_letter_is_redriven_with_its_payload(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """And discarding one removes it."""
    project = load_project(APP)
    start_worker(APP)
    hardening = Hardening.expect(project.app)
    mended = project.fixable.delay(LARGE, name="mended")
    dropped = project.fixable.delay(LARGE, name="dropped")
    letter_of(project, mended.id)
    letter = letter_of(project, dropped.id).letter
    assert len(alive(out)) == 2
    assert hardening.discard([letter.id], by="test", why="no use") == 1
    assert len(stored(out)) == 1

    (out / "fixed").write_text("yes")
    hardening.redrive(Query(), by="test", why="fixed")
    until(lambda: project.app.AsyncResult(mended.id).state == "SUCCESS", within=60, what="the redrive to succeed")
    assert [line.split()[2] for line in runs(out, "mended")] == [str(SIZE)] * 2
    until(lambda: alive(out) == [], what="the payload to be removed")


@pytest.mark.integration
def test_a_corrupt_payload_is_a_dead_letter(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """And a missing one: the body is not started, and the worker goes on."""
    project = load_project(APP)
    corrupt = project.work.apply_async([LARGE], {"name": "corrupt"})
    (path,) = alive(out)
    path.write_bytes(path.read_bytes()[:-1])
    missing = project.work.apply_async([LARGE], {"name": "missing"})
    next(one for one in alive(out) if one != path).unlink()
    start_worker(APP)
    assert letter_of(project, corrupt.id).letter.error_type.endswith("PayloadCorruptError")
    assert letter_of(project, missing.id).letter.error_type.endswith("PayloadMissingError")
    assert project.work.delay(LARGE, name="fine").get(timeout=60) == "fine"
    assert {line.split()[0] for line in notes(out, "starts")} == {"fine"}


@pytest.mark.chaos
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_producer_killed_between_put_and_publish(
    start_process: StartProcess, load_project: LoadProject, environment: dict[str, str], out: Path
) -> None:
    """No message, and a payload that nobody will ask for: its age removes it, and nothing else."""
    project = load_project(APP)
    source = """
import os, signal
from proj import app, work

app.amqp.send_task_message
app.amqp.__dict__["send_task_message"] = lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL)
work.delay("x" * 2_000_000, name="lost")
"""
    producer = start_process(APP, "python", "-c", source)
    producer.wait(within=60)
    (left,) = alive(out)
    client = Redis.from_url(project.app.conf.broker_url)
    assert client.llen(environment["QUEUE"]) == 0

    hardening = Hardening.expect(project.app)
    assert payload.sweep_now(hardening) == 0
    old = time.time() - hardening.settings.kept_for - 1
    os.utime(left, (old, old))
    assert payload.sweep_now(hardening) == 1
    assert stored(out) == []


@pytest.mark.chaos
def test_a_worker_killed_in_the_body(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """The message comes back and runs with the same arguments."""
    project = load_project(APP)
    result = project.work.apply_async([LARGE], {"name": "killed", "kills": True})
    first = start_worker(APP, env=SHORT, wait=False)
    until(lambda: (out / "killed").exists(), within=60, what="the worker to be killed")
    first.wait()
    start_worker(APP, env=SHORT)
    assert result.get(timeout=120) == "killed"
    assert [line.split()[2] for line in runs(out, "killed")] == [str(SIZE)] * 2


@pytest.mark.chaos
def test_a_worker_killed_between_the_end_and_the_ack(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """The message comes back, and is told that its task has ended: no second run, no dead letter."""
    project = load_project(APP)
    result = project.work.apply_async([LARGE], {"name": "ended"})
    first = start_worker(APP, env={**SHORT, "KILL_AFTER_THE_END": "1"}, wait=False)
    first.wait(within=60)
    assert (out / "killed after the end").exists()
    second = start_worker(APP, env=SHORT)
    until(lambda: "has ended before" in second.log(), within=120, what="the message to come back")
    assert project.app.AsyncResult(result.id).get(timeout=30) == "ended"
    assert len(runs(out, "ended")) == 1
    assert letters(project) == []
    (path,) = stored(out)
    assert path.read_bytes() == ENDED


@pytest.mark.integration
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
@pytest.mark.parametrize("store", ["redis:", "local"])
def test_other_pools_and_stores(
    start_worker: StartWorker, load_project: LoadProject, out: Path, pool: str, store: str
) -> None:
    """Our Redis, and fsspec, whose file system is made in the process that uses it."""
    env = {"PAYLOADS": store if store == "redis:" else f"local://{out}/fsspec"}
    project = load_project(APP, env=env)
    start_worker(APP, pool=pool, env=env)
    results = [project.work.apply_async([LARGE], {"name": f"n{number}", "fails": 1}) for number in range(4)]
    assert [one.get(timeout=60) for one in results] == [f"n{number}" for number in range(4)]
    assert {line.split()[2] for line in notes(out, "starts")} == {str(SIZE)}
