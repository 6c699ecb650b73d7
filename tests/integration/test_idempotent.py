"""``@idempotent`` with real workers: one effect a key, whoever asks and however often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from celery_hardened import Hardening, Query
from tests.fixtures.processes import LoadProject, StartProcess, StartWorker
from tests.support.notes import notes
from tests.support.until import until

pytestmark = pytest.mark.integration

#: Its lease: a worker may stand still for some seconds on a busy machine.
APP = """
import os, time
from pathlib import Path
from celery import Celery, chord, group
from celery.exceptions import Ignore
from celery_hardened import HardenedTask, current_execution, deduplicate, harden, idempotent
from tests.support.notes import note, notes
from tests.support.until import until

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_lease=float(os.environ.get("LEASE", "8")),
    hardened_retry_backoff=0.2,
    hardened_retry_floor=0.05,
    hardened_death_delay=0.2,
)
harden(app)


class Billing(HardenedTask):
    abstract = True
    autoretry_for = (ConnectionError,)


@app.task(base=Billing, bind=True)
@idempotent("invoice")
def send(self, invoice, seconds=0.0):
    note("effects", invoice, self.execution.key, self.execution.fence)
    time.sleep(seconds)
    self.execution.check()
    return {"invoice": invoice, "by": self.request.id}


@app.task(base=Billing, bind=True, time_limit=10)
@idempotent("invoice", compare_arguments=False)
def stuck(self, invoice, seconds=0.0):
    note("effects", invoice)
    time.sleep(seconds)
    return {"by": self.request.id}


@app.task(base=Billing, bind=True)
@idempotent("invoice")
@deduplicate("invoice", until="finish")
def flaky(self, invoice, failures=3):
    if self.request.retries < failures:
        note("failures", invoice)
        raise ConnectionError("gateway down")
    note("effects", invoice, current_execution().key)
    return "sent"


@app.task(base=Billing, bind=True)
@idempotent("invoice")
def asks_again(self, invoice):
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    note("effects", invoice)
    return "sent"


@app.task(base=Billing, bind=True, max_retries=0)
@idempotent("invoice")
def breaks(self, invoice):
    note("effects", invoice)
    if len(notes(Path(os.environ["OUT"]), "effects")) == 1:
        raise ValueError("broken")
    return "mended"


@app.task(base=Billing)
@idempotent("invoice", on_duplicate="skip")
def skips(invoice):
    note("effects", invoice)
    until(Path(os.environ["OUT"], f"end-{invoice}").exists, within=120, what="the test to have seen it")
    return "done"


@app.task(base=Billing)
@idempotent("invoice", on_duplicate="raise")
def raises(invoice):
    note("effects", invoice)
    until(Path(os.environ["OUT"], f"end-{invoice}").exists, within=120, what="the test to have seen it")
    return "done"


@app.task(base=Billing)
def total(results):
    return [one["invoice"] for one in results]
"""


def effects(out: Path, invoice: str) -> int:
    return len([line for line in notes(out, "effects") if line.split()[0] == invoice])


def test_many_messages_one_effect(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """Eight messages of one key on two workers: one runs the body, all have its result."""
    start_worker(APP)
    start_worker(APP)
    project = load_project(APP)
    results = [project.send.delay("i-1", seconds=0.5) for _ in range(8)]
    answers = [one.get(timeout=90) for one in results]
    assert effects(out, "i-1") == 1
    assert {answer["by"] for answer in answers} <= {one.id for one in results}
    assert len({answer["by"] for answer in answers}) == 1, "all have the result of the one that ran"


def test_a_long_run_keeps_its_key(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """A run of several leases is renewed: a second message waits for it, and holds no slot meanwhile."""
    start_worker(APP, concurrency=1)
    start_worker(APP, concurrency=1)
    project = load_project(APP)
    first = project.send.delay("i-1", seconds=20.0)
    until(lambda: effects(out, "i-1") == 1, within=60, what="the first run to begin")
    second = project.send.delay("i-1", seconds=20.0)
    others = [project.send.delay(f"o-{number}") for number in range(3)]
    for other in others:
        other.get(timeout=60)
    assert second.get(timeout=90) == first.get(timeout=90)
    assert effects(out, "i-1") == 1


def test_transient_failures_then_success(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """Three transient failures, with deduplication on too: one effect, one success."""
    start_worker(APP)
    project = load_project(APP)
    result = project.flaky.delay("i-1")
    assert result.get(timeout=90) == "sent"
    assert effects(out, "i-1") == 1
    assert len(notes(out, "failures")) == 3
    again = project.flaky.delay("i-1")
    assert again.id != result.id
    assert again.get(timeout=90) == "sent"
    assert effects(out, "i-1") == 1
    assert project.asks_again.delay("i-2").get(timeout=90) == "sent"
    assert effects(out, "i-2") == 1


def test_a_dead_letter_frees_the_key(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """After a failure for good a redrive runs; after a success of a twin it is replayed."""
    start_worker(APP)
    project = load_project(APP)
    hardening = Hardening.expect(project.app)
    failed = project.breaks.delay("i-1")
    with pytest.raises(ValueError, match="broken"):
        failed.get(timeout=60)
    until(lambda: hardening.dead_letters.count(Query()) == 1, within=30, what="the letter")
    hardening.redrive(Query(), by="test", why="mended")
    until(lambda: project.app.AsyncResult(failed.id).state == "SUCCESS", within=60, what="the redriven task to succeed")
    assert effects(out, "i-1") == 2
    assert project.breaks.delay("i-1").get(timeout=60) == "mended"
    assert effects(out, "i-1") == 2


def test_a_redrive_after_a_twin_is_replayed(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """The letter's work has been done by another message meanwhile: the redrive has its result, and no effect."""
    start_worker(APP)
    project = load_project(APP)
    hardening = Hardening.expect(project.app)
    failed = project.breaks.delay("i-1")
    until(lambda: hardening.dead_letters.count(Query()) == 1, within=60, what="the letter")
    assert project.breaks.delay("i-1").get(timeout=60) == "mended"
    assert effects(out, "i-1") == 2
    hardening.redrive(Query(), by="test", why="mended")
    until(lambda: project.app.AsyncResult(failed.id).state == "SUCCESS", within=60, what="the redrive to end well")
    assert project.app.AsyncResult(failed.id).result == "mended"
    assert effects(out, "i-1") == 2


BEAT = (
    APP
    + """

app.conf.beat_max_loop_interval = 0.2
app.conf.beat_schedule = {
    "send": {"task": "proj.send", "schedule": 0.3, "args": ("i-1",)},
    "once": {"task": "proj.once_a_minute", "schedule": 0.3},
    "tick": {"task": "proj.tick", "schedule": 0.3},
}


@app.task(base=Billing)
@deduplicate(until=__import__("datetime").timedelta(minutes=10))
def once_a_minute():
    note("once", "ran")


@app.task(base=Billing)
def tick():
    note("ticks", "ran")
"""
)


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_beat(start_worker: StartWorker, start_process: StartProcess, out: Path, tmp_path: Path) -> None:
    """What beat publishes is held to keys and windows as any publish."""
    start_worker(BEAT)
    schedule = str(tmp_path / "schedule")
    start_process(BEAT, "python", "-m", "celery", "-A", "proj", "beat", "--schedule", schedule)
    until(lambda: len(notes(out, "ticks")) >= 8, within=90, what="eight ticks")
    # All eight may have run in one process of the pool, before the other has begun with its first task.
    until(lambda: effects(out, "i-1") and notes(out, "once"), what="the other two to run")
    assert effects(out, "i-1") == 1
    assert len(notes(out, "once")) == 1


def test_the_same_key_with_other_arguments(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """It is not run and not replayed: a permanent error, in a letter that shows no argument."""
    start_worker(APP)
    project = load_project(APP)
    project.send.delay("i-1", seconds=0.1).get(timeout=60)
    other = project.send.delay("i-1", seconds=0.2)
    with pytest.raises(Exception, match="other arguments"):
        other.get(timeout=60)
    assert effects(out, "i-1") == 1
    (letter,) = Hardening.expect(project.app).dead_letters.find(Query()).letters
    assert letter.letter.error_type == "celery_hardened.errors.KeyMismatchError"
    assert letter.letter.reason == "permanent"


def test_what_a_duplicate_does(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """``skip`` ignores it, ``raise`` makes it a letter; neither is the run that holds the key."""
    worker = start_worker(APP, concurrency=4)
    project = load_project(APP)
    first = project.skips.delay("i-1")
    until(lambda: effects(out, "i-1") == 1, within=60, what="the first run to begin")
    skipped = project.skips.delay("i-1")
    worker.wait_for_log(f"proj.skips[{skipped.id}] is skipped", within=60)
    (out / "end-i-1").touch()
    assert first.get(timeout=60) == "done"
    assert skipped.state in ("PENDING", "IGNORED")
    held = project.raises.delay("i-2")
    until(lambda: effects(out, "i-2") == 1, within=60, what="the run to begin")
    refused = project.raises.delay("i-2")
    with pytest.raises(Exception, match="another run holds key"):
        refused.get(timeout=60)
    (out / "end-i-2").touch()
    assert held.get(timeout=60) == "done"


def test_workflows_have_every_result(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """The same key several times in a chord: one effect, and the chord has a result for each."""
    start_worker(APP)
    project = load_project(APP)
    signatures = [project.send.s(invoice, 0.2) for invoice in ("i-1", "i-1", "i-2", "i-1")]
    result = project.chord(signatures)(project.total.s())
    assert result.get(timeout=90) == ["i-1", "i-1", "i-2", "i-1"]
    assert (effects(out, "i-1"), effects(out, "i-2")) == (1, 1)


def test_by_name_and_from_plain_producers(
    start_worker: StartWorker, load_project: LoadProject, out: Path, environment: dict[str, str]
) -> None:
    """``send_task`` of an app that knows no task of ours is guarded where it runs."""
    from celery import Celery

    start_worker(APP)
    project = load_project(APP)
    with Celery("plain", broker=environment["BROKER_URL"], backend=environment["RESULT_URL"]) as plain:
        results = [plain.send_task("proj.send", ("i-1",), queue=environment["QUEUE"]) for _ in range(3)]
        results.append(project.app.send_task("proj.send", kwargs={"invoice": "i-1"}))
        assert len({result.get(timeout=60)["by"] for result in results}) == 1
    assert effects(out, "i-1") == 1


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_other_pools(start_worker: StartWorker, load_project: LoadProject, out: Path, pool: str) -> None:
    """One effect a key in every pool."""
    start_worker(APP, pool=pool, concurrency=1 if pool == "solo" else 4)
    project = load_project(APP)
    results = [project.send.delay(f"i-{number % 3}", seconds=0.1) for number in range(9)]
    for result in results:
        result.get(timeout=90)
    assert [effects(out, f"i-{number}") for number in range(3)] == [1, 1, 1]


#: Every few seconds a worker says by a script how it is: of no run.
SILENT = (
    APP
    + """

from celery_hardened.pipeline import attendance

attendance.attend_roll = lambda *_: None
"""
)


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)  # on Redis delivery has scripts of its own
def test_what_a_run_costs(start_worker: StartWorker, load_project: LoadProject, environment: dict[str, str]) -> None:
    """A guarded run makes exactly two round trips to the store, and leaves one key with a time to live."""
    start_worker(SILENT, concurrency=1, env={"LEASE": "30"})
    project = load_project(APP)
    project.send.delay("warm").get(timeout=60)
    store = redis.Redis.from_url(environment["RECORDS_URL"])

    def scripts() -> int:
        stats = store.info("commandstats")
        return int(stats.get("cmdstat_evalsha", {}).get("calls", 0))

    pattern = f"{environment['KEY_PREFIX']}:claim:*"
    before, asked = len(list(store.scan_iter(pattern))), scripts()
    for number in range(5):
        project.send.delay(f"c-{number}").get(timeout=60)
    assert scripts() - asked == 5 * 2, "claim and finish"
    keys = list(store.scan_iter(pattern))
    assert len(keys) - before == 5
    assert all(0 < store.ttl(key) < 40 * 86400 for key in keys)
    store.close()


@pytest.mark.parametrize("ending", ["terminated", "hard limit"])
def test_whoever_is_killed_by_its_worker_frees_the_key(
    start_worker: StartWorker, load_project: LoadProject, out: Path, ending: str
) -> None:
    """Its worker knows that the process is dead: the next task of the key runs long before the lease is over."""
    start_worker(APP, env={"LEASE": "300"})
    project = load_project(APP)
    task = project.stuck if ending == "hard limit" else project.send
    first = task.delay("i-1", seconds=120.0)
    until(lambda: effects(out, "i-1") == 1, within=60, what="the first run to begin")
    if ending == "terminated":
        first.revoke(terminate=True, signal="SIGKILL")
    with pytest.raises(Exception, match=r".*"):
        first.get(timeout=60)
    until(lambda: not held(project), within=60, what="the key to be free")
    second = task.delay("i-1")
    assert second.get(timeout=60)["by"] == second.id
    assert effects(out, "i-1") == 2


def held(project: Any) -> bool:
    hardening = Hardening.expect(project.app)
    (key,) = hardening.redis.scan_iter(f"{hardening.prefix}:claim:*")
    return bool(hardening.redis.hget(key, "state") == b"claimed")
