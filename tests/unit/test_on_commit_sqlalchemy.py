"""Publish on commit with SQLAlchemy sessions, on a SQLite file: real transactions, a real queue in memory."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, group
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu.exceptions import OperationalError
from sqlalchemy import Engine, String, create_engine, event, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from celery_hardened import HardenedTask
from celery_hardened.contrib.sqlalchemy import publishing_on_commit
from celery_hardened.errors import NotSentError, PublishFailedError
from celery_hardened.pipeline import waiting
from celery_hardened.pipeline.publisher import Patience
from tests.support.queued import queued_ids
from tests.unit.conftest import MakeApp


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    __tablename__ = "invoice"

    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[str] = mapped_column(String(20), unique=True)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path}/shop.sqlite3")

    # sqlite3 begins transactions by itself, too late for savepoints.
    @event.listens_for(made, "connect")
    def no_begin(connection: Any, _: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(made, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    Base.metadata.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as made:
        yield made


@pytest.fixture
def shop(make_hardened: MakeApp) -> Celery:
    app = make_hardened(hardened_publish_timeout=0.2)

    @app.task(base=HardenedTask, name="shop.charge")
    def charge(invoice: Any = None) -> Any:
        return invoice

    app.finalize()
    return app


@pytest.fixture
def charge(shop: Celery) -> Any:
    return shop.tasks["shop.charge"]


def count(session: Session) -> int:
    return session.scalar(select(func.count()).select_from(Invoice)) or 0


def test_the_commit_of_the_session_sends(shop: Celery, charge: Any, session: Session) -> None:
    """``on_commit=session``: the id at once, the message after the commit."""
    session.add(Invoice(number="1"))
    session.flush()
    result = charge.apply_async((1,), on_commit=session)
    assert queued_ids(shop) == []
    with pytest.raises(NotSentError):
        result.get(timeout=1)
    session.commit()
    assert queued_ids(shop) == [result.id]
    session.commit()
    assert queued_ids(shop) == []


def test_a_block_of_publishes(shop: Celery, charge: Any, session: Session) -> None:
    """``publishing_on_commit(session)``: every publish inside waits, wherever the commit is."""
    with publishing_on_commit(session):
        first = charge.delay(1)
        members = group(charge.s(2), charge.s(3)).apply_async()
        now = charge.apply_async((4,), on_commit=False)
    session.add(Invoice(number="1"))
    after = charge.delay(5)
    assert queued_ids(shop) == [now.id, after.id]
    session.commit()
    assert queued_ids(shop) == [first.id, *(one.id for one in members.results)]


def test_a_commit_inside_the_block(shop: Celery, charge: Any, engine: Engine) -> None:
    """``with Session.begin()`` commits at its end; the session can be used again."""
    with Session(engine) as session, publishing_on_commit(session):
        with session.begin():
            session.add(Invoice(number="1"))
            result = charge.delay(1)
            assert queued_ids(shop) == []
        assert queued_ids(shop) == [result.id]
        with session.begin():
            second = charge.delay(2)
        assert queued_ids(shop) == [second.id]
        assert count(session) == 1


def test_a_rollback_drops(shop: Celery, charge: Any, session: Session) -> None:
    """And a later commit of the same session does not send it."""
    session.add(Invoice(number="1"))
    result = charge.apply_async((1,), on_commit=session)
    session.rollback()
    with pytest.raises(NotSentError) as refused:
        result.get(timeout=1)
    assert refused.value.rolled_back
    session.add(Invoice(number="2"))
    session.commit()
    assert queued_ids(shop) == []


def test_a_publish_before_the_first_statement(shop: Celery, charge: Any, session: Session) -> None:
    """A session begins with its first statement, or with a publish: a rollback drops it in any case."""
    sent = charge.apply_async((1,), on_commit=session)
    session.add(Invoice(number="1"))
    session.commit()
    assert queued_ids(shop) == [sent.id]
    charge.apply_async((2,), on_commit=session)
    session.rollback()
    session.add(Invoice(number="2"))
    session.commit()
    assert queued_ids(shop) == []


def test_a_session_that_is_closed_sends_nothing(shop: Celery, charge: Any, engine: Engine) -> None:
    """``close()`` without a commit is a rollback."""
    with Session(engine) as session:
        session.add(Invoice(number="1"))
        session.flush()
        result = charge.apply_async((1,), on_commit=session)
    with pytest.raises(NotSentError) as refused:
        result.get(timeout=1)
    assert refused.value.rolled_back
    session.commit()
    assert queued_ids(shop) == []


def test_savepoints(shop: Celery, charge: Any, session: Session) -> None:
    """``begin_nested()``: its rollback drops its own publishes, its release hands them to the transaction."""
    session.add(Invoice(number="1"))
    before = charge.apply_async(("before",), on_commit=session)
    with session.begin_nested():
        released = charge.apply_async(("released",), on_commit=session)
        with pytest.raises(ZeroDivisionError), session.begin_nested():  # noqa: PT012
            dropped = charge.apply_async(("dropped",), on_commit=session)
            with session.begin_nested():
                deeper = charge.apply_async(("deeper",), on_commit=session)
            1 / 0  # noqa: B018
    assert queued_ids(shop) == []
    for result in (dropped, deeper):
        with pytest.raises(NotSentError) as refused:
            result.get(timeout=1)
        assert refused.value.rolled_back
    session.commit()
    assert queued_ids(shop) == [before.id, released.id]


def test_a_flush_that_fails(shop: Celery, charge: Any, session: Session) -> None:
    """A failed flush rolls the transaction back; the session goes on after ``rollback()``, the publish does not."""
    session.add(Invoice(number="1"))
    session.commit()
    charge.apply_async((1,), on_commit=session)
    session.add(Invoice(number="1"))
    with pytest.raises(IntegrityError):
        session.flush()
    session.rollback()
    session.commit()
    assert queued_ids(shop) == []


def test_a_flush_that_fails_in_a_savepoint(shop: Celery, charge: Any, session: Session) -> None:
    """Only the savepoint is rolled back, and what was published in it."""
    session.add(Invoice(number="1"))
    kept = charge.apply_async((1,), on_commit=session)
    with pytest.raises(IntegrityError), session.begin_nested():  # noqa: PT012
        charge.apply_async((2,), on_commit=session)
        session.add(Invoice(number="1"))
        session.flush()
    session.commit()
    assert queued_ids(shop) == [kept.id]


def test_a_commit_that_fails(shop: Celery, charge: Any, session: Session) -> None:
    """The flush inside ``commit()`` fails: nothing is sent."""
    session.add_all([Invoice(number="1"), Invoice(number="1")])
    charge.apply_async((1,), on_commit=session)
    with pytest.raises(IntegrityError):
        session.commit()
    session.rollback()
    session.commit()
    assert queued_ids(shop) == []


def test_a_publish_in_a_flush(shop: Celery, charge: Any, session: Session) -> None:
    """From an ORM event, inside ``commit()``'s own flush: sent by that commit."""
    published = []

    @event.listens_for(session, "before_flush")
    def on_flush(*_: Any) -> None:
        published.append(charge.apply_async((1,), on_commit=session))

    session.add(Invoice(number="1"))
    session.commit()
    assert queued_ids(shop) == [one.id for one in published]


def test_a_failed_publish_comes_out_of_the_commit(
    shop: Celery, charge: Any, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are tried, then one error; what was committed is, and the session can be used at once."""

    def refuse(producer: Any, name: str, message: Any, **_: Any) -> Any:
        if message.body[0] == (2,):
            return sender(producer, name, message)
        raise OperationalError("refused")

    def in_no_time(seconds: float) -> Patience:
        """Used up by its own pauses alone: once a machine that stands still has done so, nothing more is tried."""
        now = [0.0]
        return Patience(seconds, clock=lambda: now[-1], sleep=lambda pause: now.append(now[-1] + pause))

    monkeypatch.setattr(waiting, "Patience", in_no_time)
    sender = shop.amqp.send_task_message
    monkeypatch.setitem(shop.amqp.__dict__, "send_task_message", refuse)
    session.add(Invoice(number="1"))
    results = [charge.apply_async((number,), on_commit=session) for number in (1, 2, 3)]
    with pytest.raises(PublishFailedError) as failed:
        session.commit()
    assert failed.value.tasks == [f"shop.charge[{results[0].id}]", f"shop.charge[{results[2].id}]"]
    assert count(session) == 1
    session.add(Invoice(number="2"))
    session.commit()
    assert count(session) == 2


def test_scoped_and_async_sessions(shop: Celery, charge: Any, engine: Engine) -> None:
    """A ``scoped_session`` is the session of this moment; an ``AsyncSession`` the one inside of it."""
    scoped = scoped_session(sessionmaker(engine))
    result = charge.apply_async((1,), on_commit=scoped)
    scoped.commit()
    assert queued_ids(shop) == [result.id]
    scoped.remove()

    with Session(engine) as session:
        outer = SimpleNamespace(sync_session=session)  # as AsyncSession has it
        result = charge.apply_async((1,), on_commit=outer)
        session.commit()
    assert queued_ids(shop) == [result.id]


def test_what_is_no_session_is_refused(shop: Celery, charge: Any) -> None:
    """With a sentence, and before anything is sent."""
    for wrong in ("yes", 1, object()):
        with pytest.raises(TypeError, match="on_commit="):
            charge.apply_async((1,), on_commit=wrong)
    with pytest.raises(TypeError, match="on_commit="), publishing_on_commit(object()):
        pass
    assert queued_ids(shop) == []


def test_a_block_is_of_its_own_context(shop: Celery, charge: Any, session: Session) -> None:
    """A coroutine that runs beside the block publishes at once."""

    async def beside(inside: asyncio.Event) -> str:
        await inside.wait()
        return str(charge.delay(1).id)

    async def main() -> str:
        inside = asyncio.Event()
        other = asyncio.create_task(beside(inside))
        with publishing_on_commit(session):
            inside.set()
            return await other

    now = asyncio.run(main())
    assert queued_ids(shop) == [now]


def test_sessions_are_not_kept_alive(shop: Celery, charge: Any, engine: Engine) -> None:
    """What waits is kept in the session and goes with it."""
    session = Session(engine)
    result = charge.apply_async((1,), on_commit=session)
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None
    with pytest.raises(NotSentError) as refused:
        result.get(timeout=1)
    assert refused.value.rolled_back


#: A step is a publish (``None``) or a savepoint: whether it fails, and its steps.
STEPS = st.lists(
    st.recursive(
        st.none(), lambda steps: st.tuples(st.booleans(), st.lists(steps, max_size=3).map(tuple)), max_leaves=10
    ),
    max_size=4,
)


class Rollback(Exception):  # noqa: N818 - it is no error
    """Ends a savepoint that is to fail."""


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(program=st.lists(st.tuples(st.sampled_from(["commit", "rollback", "close"]), STEPS), max_size=4))
def test_what_is_sent_is_what_has_committed(shop: Celery, charge: Any, engine: Engine, program: list[Any]) -> None:
    """Against a model of any nesting of savepoints: the commit sends, in order, what no rollback was around."""
    with Session(engine) as session, publishing_on_commit(session):
        for end, steps in program:
            wanted = run(session, charge, steps)
            assert queued_ids(shop) == []
            getattr(session, end)()
            assert queued_ids(shop) == (wanted if end == "commit" else [])


def run(session: Session, charge: Any, steps: Iterable[Any]) -> list[str]:
    """Do *steps*; the ids that are not dropped by one of their savepoints."""
    kept = []
    for step in steps:
        if step is None:
            kept.append(charge.delay(1).id)
            continue
        fails, inner = step
        inside: list[str] = []
        with suppress(Rollback), session.begin_nested():
            session.execute(select(func.count()).select_from(Invoice))
            inside = run(session, charge, inner)
            if fails:
                raise Rollback
        kept += [] if fails else inside
    return kept
