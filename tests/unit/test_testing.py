"""What users' own tests import: tasks inline, keys, and the proof that a task may run twice."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import Ignore, NotRegistered
from kombu.exceptions import EncodeError
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from celery_hardened import HardenedTask, Hardening, Query
from celery_hardened.dedup.decorator import deduplicate
from celery_hardened.errors import ConfigurationError, NotSentError, ResultNotKeptError, UnusableKeyError
from celery_hardened.idempotency.database_sqlalchemy import create_tables, current_session
from celery_hardened.idempotency.decorator import idempotent
from celery_hardened.pipeline.on_commit import publishing_on_commit
from celery_hardened.pipeline.windows import windows
from celery_hardened.testing import (
    InMemoryCheckpointStore,
    InMemoryClaimStore,
    InMemoryDeathStore,
    InMemoryWindowStore,
    assert_idempotent,
    inline,
    key_of,
)
from tests.unit.conftest import MakeApp


def snapshot(app: Celery) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """All that ``inline`` changes."""
    assert Hardening.expect(app).settings  # they stay, once they were read
    return dict(Hardening.expect(app).__dict__), dict(app.conf.changes), "send_task" in app.__dict__


# --- inline --------------------------------------------------------------------------------------


def test_every_way_to_publish_runs_the_task_at_once(app: Celery) -> None:
    """``delay``, signatures, canvas, and ``send_task`` by name: done when the call returns, in the order of calls."""
    ran: list[Any] = []

    @app.task(base=HardenedTask, name="shop.note")
    def note(one: Any, more: Any = None) -> Any:
        ran.append(one)
        return one

    with inline(app):
        assert note.delay(1).get() == 1
        assert app.send_task("shop.note", (2,)).get() == 2
        assert chain(note.s(3), note.s(4))().get() == 3
        assert group(note.s(5), note.s(6))().get() == [5, 6]
        assert chord([note.s(7)], note.s())().get() == [7]
        with pytest.raises(NotRegistered):
            app.send_task("shop.unknown")
    assert ran[:3] == [1, 2, 3]
    assert ran[4:] == [5, 6, 7, [7]]


def test_arguments_pass_the_serializer(app: Celery) -> None:
    """A task sees what a message would bring, and what cannot be sent is refused as it would be."""
    seen: list[Any] = []

    @app.task(base=HardenedTask)
    def look(one: Any) -> None:
        seen.append(one)

    with inline(app):
        look.delay((1, 2))
        with pytest.raises(EncodeError):
            look.delay(object())
    assert seen == [[1, 2]]


def test_all_attempts_then_the_error_and_its_letter(app: Celery) -> None:
    """A failing task is tried as often as in a worker; then the call raises and the letter is at hand."""
    tries: list[int] = []

    @app.task(base=HardenedTask, bind=True, max_retries=2)
    def fetch(self: Any) -> None:
        tries.append(self.request.retries)
        raise ConnectionError("down")

    with inline(app) as inside:
        with pytest.raises(ConnectionError):
            fetch.delay()
        [stored] = inside.dead_letters.find(Query(task=fetch.name)).letters
        assert stored.letter.reason == "exhausted"
    with inline(app, propagate=False):
        assert fetch.delay().state == "FAILURE"
    assert tries == [0, 1, 2] * 2


def test_nothing_is_left_behind(make_hardened: MakeApp) -> None:
    """Stores are empty in each block, and the app is as it was after it, also after an error and inside another."""
    app = make_hardened(hardened_payload_store="file:///nowhere")
    hardening = Hardening.expect(app)

    @app.task(base=HardenedTask)
    def broken() -> None:
        raise ValueError("broken")

    assert hardening.dead_letters.count(Query()) == 0
    before = snapshot(app)
    for _ in range(2):
        with inline(app) as inside:
            assert inside.dead_letters.count(Query()) == 0
            assert hardening.settings.payload_store == "memory:"
            with inline(app, propagate=False) as deeper:
                broken.delay()
                assert deeper.dead_letters.count(Query()) == 1
            assert inside.dead_letters.count(Query()) == 0
            with pytest.raises(ValueError, match="broken"):
                broken.delay()
            assert inside.dead_letters.count(Query()) == 1
        assert snapshot(app) == before
    with pytest.raises(KeyError), inline(app):
        raise KeyError
    assert snapshot(app) == before
    assert hardening.dead_letters.count(Query()) == 0


def test_no_store_is_connected_to(make_hardened: MakeApp) -> None:
    """Whatever the app is configured with, what a task might use is in memory."""
    app = make_hardened(hardened_redis_url="redis://127.0.0.1:1/0", hardened_dead_letter_store="redis")
    with inline(app) as inside:
        hardening = inside.hardening
        assert isinstance(hardening.effects.claims, InMemoryClaimStore)
        assert isinstance(hardening.effects.checkpoints, InMemoryCheckpointStore)
        assert isinstance(hardening.deaths, InMemoryDeathStore)
        assert isinstance(windows(hardening), InMemoryWindowStore)
        assert hardening.dead_letters is inside.dead_letters
        assert hardening.switches.get("retries")
    assert hardening.settings.dead_letter_store == "redis"


def test_the_users_own_eager_settings_come_back(make_hardened: MakeApp) -> None:
    app = make_hardened(task_always_eager=True)
    with inline(app, propagate=False):
        assert app.conf.task_eager_propagates is False
    assert app.conf.task_always_eager is True
    assert "task_eager_propagates" not in app.conf.changes


def test_an_app_that_is_not_hardened_is_refused(make_app: MakeApp) -> None:
    with pytest.raises(ConfigurationError, match="was never hardened"), inline(make_app()):
        pass


# --- transactions ----------------------------------------------------------------------------------


@pytest.fixture
def session() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    with Session(engine) as session:
        yield session
    engine.dispose()


def test_publishes_wait_for_the_commit_if_asked(app: Celery, session: Session) -> None:
    """Held until the commit, as they were published; dropped by a rollback; what a task publishes goes on at once."""
    ran: list[Any] = []

    @app.task(base=HardenedTask, name="shop.after")
    def after(one: Any) -> None:
        ran.append(("after", one))

    @app.task(base=HardenedTask, name="shop.note")
    def note(one: Any) -> Any:
        ran.append(one)
        return one

    app.finalize()
    with inline(app, await_commits=True):
        session.execute(text("select 1"))
        rows = [1]
        with publishing_on_commit(session):
            first = note.apply_async((rows,), link=after.s())
            app.send_task("shop.note", (2,))
            rows.append(99)
            assert note.apply_async((3,), on_commit=False).get() == 3
            assert ran == [3]
            with pytest.raises(NotSentError):
                first.get()
            session.commit()  # here, where the callback's publish would wait for the next commit, were it the user's
        assert first.get() == [1]
        assert ran == [3, [1], ("after", [1]), 2]

        session.execute(text("select 1"))
        dropped = note.apply_async((4,), on_commit=session)
        session.rollback()
        session.commit()
        with pytest.raises(NotSentError):
            dropped.get()
        assert note.delay(5).get() == 5
    assert ran[4:] == [5]
    assert "apply_async" not in note.__dict__


def test_publishes_run_at_once_if_not(app: Celery, session: Session) -> None:
    """A test's transaction never commits, so by default nothing waits; the error of a held task is the commit's."""

    @app.task(base=HardenedTask, name="shop.broken")
    def broken() -> None:
        raise ValueError("broken")

    app.finalize()
    with inline(app), pytest.raises(ValueError, match="broken"):
        broken.apply_async(on_commit=session)
    with inline(app, await_commits=True):
        broken.apply_async(on_commit=session)
        session.execute(text("select 1"))
        with pytest.raises(ValueError, match="broken"):
            session.commit()


# --- key_of ----------------------------------------------------------------------------------------


def test_key_of_is_the_key_of_the_call(app: Celery) -> None:
    """However the call is written; an argument may be called like the task; ``@deduplicate`` has one too."""

    @app.task(base=HardenedTask, bind=True, name="shop.job")
    @idempotent("task")
    @deduplicate()
    def job(self: Any, task: int, note: str = "") -> None: ...

    @app.task(base=HardenedTask)
    @deduplicate("one")
    def once(one: Any) -> None: ...

    @app.task(base=HardenedTask)
    def plain(one: Any) -> None: ...

    assert key_of(job, 1) == key_of(job, task=1, note="x")
    assert key_of(job, 1) != key_of(job, "1")
    assert key_of(job, 1).startswith("shop.job:1:")
    assert key_of(once, 1) == key_of(once, one=1)
    with pytest.raises(UnusableKeyError):
        key_of(once, object())
    with pytest.raises(TypeError, match="neither"):
        key_of(plain, 1)


# --- assert_idempotent -----------------------------------------------------------------------------


class Mailer:
    """A provider of mails."""

    def __init__(self) -> None:
        self.mails: list[str] = []
        self.keys: set[str] = set()
        self.runs = 0

    def send(self, to: str, key: str | None = None) -> None:
        self.runs += 1
        if key is None or key not in self.keys:
            self.mails.append(to)
        if key is not None:
            self.keys.add(key)


def make_task(app: Celery, body: Any, **options: Any) -> Any:
    return app.task(bind=True, base=HardenedTask, name=f"shop.{body.__name__}")(idempotent("to", **options)(body))


def test_an_effect_that_knows_the_key_passes(app: Celery) -> None:
    """The body runs twice, once killed; the duplicate does not run it; and nothing is left behind."""
    mailer = Mailer()

    def mail(self: Any, to: str, note: str = "") -> str:
        mailer.send(to, self.execution.key)
        return "sent"

    task, before = make_task(app, mail), snapshot(app)
    assert_idempotent(task, "a@b.c", note="x", effects=lambda: mailer.mails)
    assert (mailer.mails, mailer.runs) == (["a@b.c"], 2)
    assert_idempotent(task, "d@e.f")
    assert mailer.runs == 4
    assert snapshot(app) == before
    assert task.request_stack.top is None
    assert app.current_worker_task is None


def test_an_effect_that_is_repeated_fails(app: Celery) -> None:
    """The test finds the gap between effect and mark, also if effects() gives the same list each time."""
    mailer = Mailer()

    def mail(self: Any, to: str) -> None:
        mailer.send(to)

    with pytest.raises(AssertionError, match=r"killed after its effect and ran again.*self\.execution\.key"):
        assert_idempotent(make_task(app, mail), "a@b.c", effects=lambda: mailer.mails)


class Mails:
    """A table of mails in a database, and the project that has it."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = create_engine(f"sqlite:///{path}/shop")
        project = ModuleType("shop_database")
        project.sessions = sessionmaker(self.engine)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "shop_database", project)
        create_tables(self.engine)
        with self.engine.begin() as connection:
            connection.execute(text("create table mail (address text)"))

    def insert(self, to: str) -> None:
        """In the transaction of the task that runs."""
        found = current_session()
        assert found is not None
        found.execute(text("insert into mail values (:to)"), {"to": to})

    def all(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.scalars(text("select address from mail")))


@pytest.fixture
def mails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mails]:
    made = Mails(tmp_path, monkeypatch)
    yield made
    made.engine.dispose()


def test_a_database_undoes_the_killed_run(make_hardened: MakeApp, mails: Mails) -> None:
    """With the mark in the effect's own transaction a plain insert passes: the kill takes it along."""
    runs: list[str] = []

    def mail(self: Any, to: str) -> None:
        runs.append(to)
        mails.insert(to)

    app = make_hardened(hardened_database="shop_database:sessions")
    assert_idempotent(make_task(app, mail, store="database"), "a@b.c", effects=mails.all)
    assert (runs, mails.all()) == (["a@b.c"] * 2, ["a@b.c"])


def test_what_the_task_publishes_has_stores_of_its_own(make_hardened: MakeApp, mails: Mails) -> None:
    """A task that publishes another, whose mark is in the database: that one is not killed, and runs once."""
    app = make_hardened(hardened_database="shop_database:sessions")
    runs: list[str] = []

    def mail(self: Any, to: str) -> None:
        mails.insert(to)

    inner = make_task(app, mail, store="database")

    def order(self: Any, to: str) -> None:
        runs.append(to)
        inner.delay(to)

    assert_idempotent(make_task(app, order), "a@b.c", effects=mails.all)
    assert (runs, mails.all()) == (["a@b.c"] * 2, ["a@b.c"])


def test_effects_that_show_nothing_prove_nothing(app: Celery) -> None:
    """Work that was done before, or a question about something else, is no proof."""
    mailer = Mailer()

    def mail(self: Any, to: str) -> None:
        mailer.send(to, self.execution.key)

    task = make_task(app, mail)
    with pytest.raises(AssertionError, match="does not show what the task does"):
        assert_idempotent(task, "a@b.c", effects=lambda: 0)
    with pytest.raises(AssertionError, match="does not show what the task does"):
        assert_idempotent(task, "a@b.c", effects=lambda: mailer.mails)


def test_a_result_that_is_not_kept_fails(app: Celery) -> None:
    """A duplicate would have no result to give."""

    def mail(self: Any, to: str) -> object:
        return {1, 2}

    with pytest.raises(ResultNotKeptError):
        assert_idempotent(make_task(app, mail), "a@b.c")


def test_the_tasks_own_error_comes_out(app: Celery) -> None:
    def mail(self: Any, to: str) -> None:
        raise ValueError("no such address")

    with pytest.raises(ValueError, match="no such address"):
        assert_idempotent(make_task(app, mail), "a@b.c")

    def stop(self: Any, to: str) -> None:
        if not stopped:
            stopped.append(to)
            raise KeyboardInterrupt

    stopped: list[str] = []

    with pytest.raises(KeyboardInterrupt):
        assert_idempotent(make_task(app, stop), "a@b.c")

    def ignore(self: Any, to: str) -> None:
        raise Ignore

    with pytest.raises(AssertionError, match="ended without a success"):
        assert_idempotent(make_task(app, ignore), "a@b.c")


def test_a_retry_on_the_way_is_no_second_effect(app: Celery) -> None:
    """Attempts that fail release the key; the one that succeeds is the one that is killed."""
    mailer = Mailer()

    def mail(self: Any, to: str) -> int:
        if self.request.retries < 2:
            raise ConnectionError("busy")
        mailer.send(to, self.execution.key)
        return len(mailer.mails)

    assert_idempotent(make_task(app, mail), "a@b.c", effects=lambda: mailer.mails)


def test_a_task_without_a_key_is_refused(app: Celery) -> None:
    @app.task(base=HardenedTask)
    def plain() -> None: ...

    with pytest.raises(TypeError, match="has no @idempotent"):
        assert_idempotent(plain)
