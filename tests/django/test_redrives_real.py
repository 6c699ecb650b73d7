"""Bulk actions by real workers on a real Redis: killed, begun many times, stopped, and alone with their canary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from celery_hardened import Hardening
from celery_hardened.contrib.django.admin import DeadLetterAdmin
from celery_hardened.contrib.django.dead_letters import act, bulk
from celery_hardened.contrib.django.models import BulkAction
from celery_hardened.dead_letter.contract import DeadLetterStore, Query
from celery_hardened.dead_letter.letter import DeadLetter
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support import django_project
from tests.support.admin_letters import BULK, REDRIVE, hidden, site  # noqa: F401 - the last is a fixture
from tests.support.notes import notes
from tests.support.until import until

PROJECT = dedent(
    """
    import os

    import django
    from celery import Celery

    from celery_hardened import HardenedTask, harden
    from tests.support.notes import note

    if os.environ.get("DJANGO_SETTINGS_MODULE"):
        django.setup()

    app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
    app.conf.update(
        task_default_queue=os.environ["QUEUE"],
        hardened_redis_url=os.environ["RECORDS_URL"],
        hardened_key_prefix=os.environ["KEY_PREFIX"],
        hardened_dead_letter_store=os.environ["LETTERS"],
        hardened_lease=float(os.environ.get("LEASE", "3")),
    )
    harden(app)


    @app.task(base=HardenedTask)
    def charge(number):
        note("charged", number)
    """
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.parametrize("broker", ["redis"], indirect=True),
]


class Shop:
    """The project of a test: its letters, its web side, and what its workers did."""

    def __init__(self, app: Any, environment: dict[str, str], out: Path) -> None:
        self.app = app
        self.out = out
        self.store: DeadLetterStore = Hardening.expect(app).dead_letters
        self.charges = f"{environment['QUEUE']}-charges"
        self.web = Client()
        self.web.force_login(User.objects.create_superuser("ada", password="x"))

    def put(self, *numbers: int, queue: str | None = None) -> None:
        for number in numbers:
            task_id = f"task-{number}"
            self.store.put(
                DeadLetter(
                    id=f"{task_id}-0-0",
                    reason="permanent",
                    task="proj.charge",
                    task_id=task_id,
                    queue=queue or self.charges,
                    body=f"[[{number}], {{}}, {{}}]".encode(),
                    content_type="application/json",
                    content_encoding="utf-8",
                    headers={"task": "proj.charge", "id": task_id, "retries": 0},
                )
            )

    def ask(self, **how: str) -> BulkAction:
        """Redrive all of ``proj.charge``, as the pages of the admin have it."""
        page = self.web.post(REDRIVE, {"which": "all", "task": "proj.charge"})
        form = hidden(page.content.decode(), "query", "key")
        self.web.post(REDRIVE, {**form, "confirmed": "1", "why": "mended", **how})
        found: BulkAction = BulkAction.objects.get()
        return found

    def charged(self) -> Counter[int]:
        return Counter(int(line.split()[0]) for line in notes(self.out, "charged"))


@pytest.fixture(params=["redis", "django"])
def letters(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shop(
    letters: str,
    load_project: LoadProject,
    environment: dict[str, str],
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Shop]:
    monkeypatch.setattr(act, "MOST", 0)
    project = load_project(PROJECT, {"LETTERS": letters})
    monkeypatch.setattr(DeadLetterAdmin, "celery_app", project.app)
    yield Shop(project.app, environment, out)
    django_project.close_all()


def seen(action: BulkAction) -> BulkAction:
    found: BulkAction = BulkAction.objects.get(pk=action.pk)
    return found


def _sent(action: BulkAction, far: int) -> bool:
    return bool(seen(action).done >= far)


def _more_charged(shop: Shop, than: int) -> bool:
    return len(shop.charged()) > than


@pytest.mark.timeout(300)  # a busy machine needs half a minute for each worker that starts
def test_a_worker_that_is_killed(
    shop: Shop, letters: str, start_worker: StartWorker, environment: dict[str, str]
) -> None:
    """SIGKILL in the midst of it, twice: it goes on, each task runs once, each letter is counted once.

    A letter that came after the question is left alone.
    """
    env = {**django_project.environment(), "LETTERS": letters}
    number = 200  # more than three seconds' worth are left at the second kill, should whoever watches stand still
    shop.put(*range(number))
    # This one is not killed, and a second run of a task would be no fault of who sends: it may stand still for longer.
    start_worker(PROJECT, queues=[shop.charges], env={**env, "LEASE": "60"}, concurrency=1)
    worker = start_worker(PROJECT, queues=[environment["QUEUE"]], env=env, concurrency=1)
    action = shop.ask(rate="30")
    shop.put(1000)
    for far in (30, 90):
        until(partial(_sent, action, far), within=120, what=f"{far} letters to be sent")
        until(partial(_more_charged, shop, len(shop.charged())), within=60, what="it to be in the midst of a batch")
        worker.kill_group()
        worker.start()
    until(
        lambda: seen(action).ended,
        within=240,
        what="it to end",
    )
    until(lambda: len(shop.charged()) >= number, within=60, what="all tasks to run")
    until(lambda: shop.store.count(Query(state="resolved")) == number, within=60, what="all letters to be resolved")
    assert shop.charged() == Counter(range(number))
    ended = seen(action)
    assert (ended.state, ended.total, ended.done, ended.left) == ("done", number, number, 0)
    assert shop.store.get("task-1000-0-0").state == "dead"


@pytest.mark.parametrize("letters", ["redis"])
def test_begun_many_times(shop: Shop, letters: str, start_worker: StartWorker, environment: dict[str, str]) -> None:
    """Many messages for one action, in two workers at once: each letter is sent and counted once."""
    env = {**django_project.environment(), "LETTERS": letters}
    shop.put(*range(300))
    action = shop.ask()
    for _ in range(5):
        bulk.ask(shop.app, action.pk)
    for _ in range(2):
        start_worker(PROJECT, queues=[environment["QUEUE"]], env=env)
    until(lambda: seen(action).ended, within=120, what="it to end")
    assert (seen(action).done, seen(action).left) == (300, 0)
    redrives = [sum(one.action == "redrive" for one in shop.store.get(f"task-{n}-0-0").audit) for n in range(300)]
    assert set(redrives) == {1}


@pytest.mark.parametrize("letters", ["redis"])
def test_stopped(shop: Shop, letters: str, start_worker: StartWorker, environment: dict[str, str]) -> None:
    """The button ends it within a batch; what was not sent is open as it was."""
    env = {**django_project.environment(), "LETTERS": letters}
    shop.put(*range(400))
    start_worker(PROJECT, queues=[environment["QUEUE"]], env=env)
    action = shop.ask(rate="4")
    until(lambda: seen(action).done >= 4, within=60, what="it to begin")
    shop.web.post(f"{BULK}{action.pk}/stop/")
    until(lambda: seen(action).ended, within=30, what="it to stop")
    ended = seen(action)
    assert ended.state == "stopped"
    assert shop.store.count(Query(state="dead")) == 400 - ended.done > 300


@pytest.mark.parametrize("letters", ["redis"])
def test_one_process_for_it_and_its_canary(
    shop: Shop, letters: str, start_worker: StartWorker, environment: dict[str, str]
) -> None:
    """It does not sit in the one process that its canary waits for."""
    env = {**django_project.environment(), "LETTERS": letters}
    shop.put(*range(20), queue=environment["QUEUE"])
    start_worker(PROJECT, env=env, concurrency=1)
    action = shop.ask(canary="3", canary_wait="120")
    until(lambda: seen(action).ended, within=100, what="it to end")
    assert (seen(action).state, seen(action).done) == ("done", 20)
    assert seen(action).canary_said == "3 succeeded, 0 died again, 0 had not finished"
