"""Publish on commit where a session, a block or a result is used in another way than one by one."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery, group
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from celery_hardened import HardenedTask, Hardening, Query, deduplicate
from celery_hardened.contrib.sqlalchemy import publishing_on_commit
from celery_hardened.errors import NotSentError
from celery_hardened.pipeline.on_commit import immediately, in_trace, running_body, tracing
from celery_hardened.pipeline.publisher import Publisher
from tests.support.queued import queued_ids
from tests.unit.conftest import MakeApp


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path}/shop.sqlite3")
    yield made
    made.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as made:
        yield made


@pytest.fixture
def shop(make_hardened: MakeApp) -> Celery:
    return make_hardened(hardened_publish_timeout=0.2)


@pytest.fixture
def charge(shop: Celery) -> Any:
    @shop.task(base=HardenedTask, shared=False, name="shop.charge")
    def charge(invoice: Any = None) -> Any:
        return invoice

    return charge


# --- sessions that have not begun ----------------------------------------------------------------------


@pytest.mark.parametrize("autobegin", [True, False])
def test_a_publish_before_a_begin_of_ones_own(shop: Celery, charge: Any, engine: Engine, autobegin: bool) -> None:
    """``session.begin()`` after the publish finds no transaction begun; its commit sends, its rollback drops."""
    with Session(engine, autobegin=autobegin) as session, publishing_on_commit(session):
        sent = charge.delay(1)
        with session.begin():
            session.execute(text("select 1"))
            assert queued_ids(shop) == []
        assert queued_ids(shop) == [sent.id]
        charge.delay(2)
        with pytest.raises(ZeroDivisionError), session.begin():
            1 / 0  # noqa: B018
        with session.begin():
            session.execute(text("select 1"))
        assert queued_ids(shop) == []


@pytest.mark.parametrize("ending", ["rollback", "close", "reset", "invalidate"])
def test_a_session_that_never_began(shop: Celery, charge: Any, session: Session, ending: str) -> None:
    """Its end drops what was published for it, though SQLAlchemy has no event there: the next commit sends nothing."""
    dropped = charge.apply_async((1,), on_commit=session)
    getattr(session, ending)()
    with pytest.raises(NotSentError) as refused:
        dropped.get(timeout=1)
    assert refused.value.rolled_back
    session.execute(text("select 1"))
    session.commit()
    assert queued_ids(shop) == []
    sent = charge.apply_async((2,), on_commit=session)
    session.commit()
    assert queued_ids(shop) == [sent.id]
    assert ending not in vars(session)  # its own method is its own again


def test_a_session_begun_by_a_savepoint(shop: Celery, charge: Any, session: Session) -> None:
    """What was published before it belongs to the transaction, not to the savepoint."""
    sent = charge.apply_async((1,), on_commit=session)
    with pytest.raises(ZeroDivisionError), session.begin_nested():  # noqa: PT012
        charge.apply_async((2,), on_commit=session)
        1 / 0  # noqa: B018
    session.commit()
    assert queued_ids(shop) == [sent.id]


def test_a_session_with_the_info_of_another(shop: Celery, charge: Any, engine: Engine, session: Session) -> None:
    """Each sends its own at its own commit."""
    first = charge.apply_async((1,), on_commit=session)
    with Session(engine, info=session.info) as other:
        second = charge.apply_async((2,), on_commit=other)
        other.commit()
        assert queued_ids(shop) == [second.id]
    session.commit()
    assert queued_ids(shop) == [first.id]


# --- blocks and contexts ---------------------------------------------------------------------------------


def test_a_task_begun_in_a_block_that_is_left(shop: Celery, charge: Any, session: Session) -> None:
    """Its context still knows the block; its publish does not wait for a session that nobody commits."""

    async def afterwards(left: asyncio.Event) -> str:
        await left.wait()
        return str(charge.delay(1).id)

    async def main() -> str:
        left = asyncio.Event()
        with publishing_on_commit(session):
            other = asyncio.create_task(afterwards(left))
            await asyncio.sleep(0)
        left.set()
        return await other

    now = asyncio.run(main())
    assert queued_ids(shop) == [now]


def test_a_block_in_a_block(shop: Celery, charge: Any, engine: Engine, session: Session) -> None:
    """The inner one counts until it is left, then the outer one; also for who began inside of the inner."""
    with publishing_on_commit(session):
        with Session(engine) as other, publishing_on_commit(other):
            inside = contextvars.copy_context()
            second = charge.delay(2)
            other.commit()
        assert queued_ids(shop) == [second.id]
        first, third = charge.delay(1), inside.run(charge.delay, 3)
    assert queued_ids(shop) == []
    session.commit()
    assert queued_ids(shop) == [first.id, third.id]


def test_a_block_that_is_left_in_another_context(shop: Celery, charge: Any, session: Session) -> None:
    """A dependency of FastAPI that is no coroutine is entered and left in copies of the request's context."""

    def dependency() -> Iterator[Session]:
        with publishing_on_commit(session):
            yield session
            session.commit()

    generator = dependency()
    given = contextvars.copy_context().run(next, generator)
    result = charge.apply_async((1,), on_commit=given)
    with pytest.raises(StopIteration):
        contextvars.copy_context().run(next, generator)
    assert queued_ids(shop) == [result.id]


def test_places_lie_in_each_other(charge: Any) -> None:
    """A task that is called inside another's body, or retries in it, gives the place back; also in an error."""
    with tracing():
        assert in_trace()
        with pytest.raises(ZeroDivisionError), running_body():  # noqa: PT012
            with tracing(), running_body(), immediately():
                assert not in_trace()
            with tracing():
                assert in_trace()
            assert not in_trace()
            1 / 0  # noqa: B018
        assert in_trace()
    assert not in_trace()


# --- results --------------------------------------------------------------------------------------------


def test_an_id_that_is_used_again(shop: Celery, charge: Any, session: Session) -> None:
    """Rolled back, then sent at once under the same id: its result is waited for as any other's."""
    session.execute(text("select 1"))
    charge.apply_async((1,), task_id="fixed", on_commit=session)
    session.rollback()
    again = charge.apply_async((1,), task_id="fixed")
    shop.backend.store_result("fixed", 7, "SUCCESS")
    assert again.get(timeout=5) == 7
    assert queued_ids(shop) == ["fixed"]


def test_sets_of_results_say_what_is_not_sent(shop: Celery, charge: Any, session: Session) -> None:
    """However they are waited for."""
    one = charge.apply_async((1,), on_commit=session)
    with publishing_on_commit(session):
        members = group(charge.s(2), charge.s(3)).apply_async()
    for wait in (
        shop.ResultSet([one]).get,
        shop.ResultSet([shop.AsyncResult(one.id)]).join_native,
        shop.ResultSet([one]).iter_native,
        members.iter_native,
        members.get,
        lambda: list(one.collect()),
    ):
        with pytest.raises(NotSentError):
            wait()


def test_copies_say_what_is_not_sent(shop: Celery, charge: Any, session: Session) -> None:
    """A result that was copied, or pickled where its app is the current one."""
    shop.set_current()
    result = charge.apply_async((1,), on_commit=session)
    for other in (copy.copy(result), copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert other == result
        with pytest.raises(NotSentError):
            other.get(timeout=1)
    session.commit()
    shop.backend.store_result(result.id, 7, "SUCCESS")
    assert copy.copy(result).get(timeout=5) == 7


def test_a_result_stays_in_its_set(shop: Celery, session: Session) -> None:
    """Though ``@deduplicate`` gives it the id of the task that was first."""

    @shop.task(base=HardenedTask, shared=False, name="shop.once")
    @deduplicate("order")
    def once(order: int) -> None: ...

    first = once.delay(1)
    result = once.apply_async((1,), on_commit=session)
    known = {result: "mine"}
    session.commit()
    assert result.id == first.id
    assert known[result] == "mine"
    assert copy.copy(result).id == first.id


# --- a limit of the task ----------------------------------------------------------------------------------


def patient(shop: Celery) -> None:
    """Have a commit wait for the broker for ten minutes."""
    shop.conf.hardened_publish_timeout = 600
    Hardening.expect(shop).__dict__.pop("settings", None)


def test_a_soft_time_limit_ends_the_task(
    shop: Celery, charge: Any, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raised while the commit publishes: what it interrupted is a dead letter, the others are sent, and then it
    comes out of the commit."""
    patient(shop)  # after a fifth of a second in which the machine stands still, the others would not be tried
    sender, calls = shop.amqp.send_task_message, []

    def interrupted(producer: Any, name: str, message: Any, **options: Any) -> Any:
        calls.append(message.body[0])
        if len(calls) == 1:
            raise SoftTimeLimitExceeded
        return sender(producer, name, message, **options)

    monkeypatch.setitem(shop.amqp.__dict__, "send_task_message", interrupted)
    first, second = (charge.apply_async((number,), on_commit=session) for number in (1, 2))
    with pytest.raises(SoftTimeLimitExceeded):
        session.commit()
    assert calls == [(1,), (2,)]
    assert queued_ids(shop) == [second.id]
    letters = Hardening.expect(shop).dead_letters.find(Query(), limit=5).letters
    assert [(one.letter.task_id, one.letter.reason) for one in letters] == [(first.id, "unsent")]


def test_after_a_soft_time_limit_nothing_is_waited_for(
    shop: Celery, charge: Any, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hard one is near: the others are tried once each, however long a commit may wait for the broker."""
    patient(shop)
    calls = []

    def refuse(_: Any, __: str, message: Any, **___: Any) -> Any:
        calls.append(message.body[0])
        raise SoftTimeLimitExceeded if len(calls) == 1 else ConnectionRefusedError

    monkeypatch.setitem(shop.amqp.__dict__, "send_task_message", refuse)
    for number in (1, 2, 3):
        charge.apply_async((number,), on_commit=session)
    began = time.monotonic()
    with pytest.raises(SoftTimeLimitExceeded):
        session.commit()
    assert set(calls) == {(1,), (2,), (3,)}
    assert len(Hardening.expect(shop).dead_letters.find(Query(), limit=5).letters) == 3
    assert time.monotonic() - began < 60


def test_a_soft_time_limit_beside_a_publish(
    shop: Celery, charge: Any, session: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Between two lines of ours: the log says which one, and the others are sent before the task ends."""
    first, second = (charge.apply_async((number,), on_commit=session) for number in (1, 2))
    publish, calls = Publisher.publish, []

    def interrupted(self: Publisher, call: Any, *more: Any) -> Any:
        calls.append(call.task_id)
        if len(calls) == 1:
            raise SoftTimeLimitExceeded
        return publish(self, call, *more)

    monkeypatch.setattr(Publisher, "publish", interrupted)
    with pytest.raises(SoftTimeLimitExceeded):
        session.commit()
    assert calls == [first.id, second.id]
    assert queued_ids(shop) == [second.id]
    assert [record.levelname for record in caplog.records if first.id in record.getMessage()] == ["CRITICAL"]
