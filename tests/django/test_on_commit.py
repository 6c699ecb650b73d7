"""Publish on commit with Django, on SQLite files: what waits for what, what is dropped, and what comes out.

Every transaction here is a real one. ``test_on_commit_postgres.py`` repeats what a server may do otherwise.
"""

from __future__ import annotations

import copy
import logging
import pickle
import threading
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import AlwaysEagerIgnored
from celery.result import AsyncResult
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from kombu.exceptions import EncodeError

from celery_hardened import Hardening
from celery_hardened.dead_letter.contract import Query
from celery_hardened.errors import NotSentError, PublishFailedError
from celery_hardened.metrics.catalogue import PUBLISHED
from celery_hardened.pipeline.on_commit import immediately, running_body, tracing
from tests.support.django_shop.models import Invoice, Unique
from tests.support.queued import queued_ids, take_queued


def configure(app: Celery, **conf: Any) -> None:
    """Change settings of an app that has read them already."""
    app.conf.update(conf)
    Hardening.expect(app).__dict__.pop("settings", None)


# --- one transaction --------------------------------------------------------------------------------


def test_a_publish_waits_for_the_commit_and_has_its_id_at_once(app: Celery, charge: Any) -> None:
    """H128, H129: inside ``atomic()`` nothing is sent, the handle has the id, and the commit sends it."""
    with transaction.atomic():
        invoice = Invoice.objects.create(number="1")
        result = charge.delay(invoice.pk)
        assert isinstance(result, AsyncResult)
        assert result.id
        assert not result.sent
        assert queued_ids(app) == []

    (message,) = take_queued(app)
    assert message.headers["id"] == result.id
    assert message.payload[0] == [invoice.pk]
    assert result.sent


def test_a_rollback_publishes_nothing(app: Celery, charge: Any) -> None:
    """H129: what was published in a transaction that is rolled back is never sent, and its handle says so."""
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        result = charge.delay(1)
        1 / 0  # noqa: B018

    assert queued_ids(app) == []
    with pytest.raises(NotSentError) as refused:
        result.get(timeout=0.1)
    assert refused.value.rolled_back
    with transaction.atomic():
        Invoice.objects.create(number="2")
    assert queued_ids(app) == []  # nor does a later commit of the connection send it


def test_outside_of_a_transaction_it_is_sent_at_once(app: Celery, charge: Any) -> None:
    """With autocommit there is nothing to wait for, though the connection is open."""
    Invoice.objects.create(number="1")
    result = charge.delay(1)

    assert queued_ids(app) == [result.id]


def test_the_result_says_that_it_is_not_sent_yet(app: Celery, charge: Any) -> None:
    """``get()`` inside the transaction would wait for ever; it raises instead. Afterwards it is Celery's own."""
    with transaction.atomic():
        result = charge.delay(1)
        with pytest.raises(NotSentError) as refused:
            result.get(timeout=1)
        assert not refused.value.rolled_back
        assert result.state == "PENDING"
        assert not result.ready()

    app.backend.store_result(result.id, "done", "SUCCESS")
    assert result.get(timeout=10) == "done"


def test_the_handle_survives_copies(app: Celery, charge: Any) -> None:
    """A pickled or copied handle is a result of the app, of the same id."""
    with transaction.atomic():
        result = charge.delay(1)
        assert copy.copy(result).id == result.id
        assert type(copy.copy(result)) is app.AsyncResult
        assert result.as_tuple() == ((result.id, None), None)
        assert pickle.dumps(result.id)


def test_set_rollback_drops_it(app: Celery, charge: Any) -> None:
    """A transaction that was marked for rollback sends nothing, though no error leaves the block."""
    with transaction.atomic():
        charge.delay(1)
        transaction.set_rollback(True)

    assert queued_ids(app) == []


def test_durable_atomic_is_a_transaction_like_any_other(app: Celery, charge: Any) -> None:
    """``atomic(durable=True)`` commits at its end, and sends then."""
    with transaction.atomic(durable=True):
        result = charge.delay(1)
        assert queued_ids(app) == []
    assert queued_ids(app) == [result.id]


def test_a_commit_that_fails_sends_nothing(app: Celery, charge: Any) -> None:
    """A deferred constraint is checked by COMMIT itself: the database rolls back, so nothing is sent."""
    with pytest.raises(IntegrityError), transaction.atomic():
        Unique.objects.create(number="1", parent_id=999_999)
        result = charge.delay(1)

    assert Unique.objects.count() == 0
    assert queued_ids(app) == []
    with pytest.raises(NotSentError):
        result.get(timeout=1)


def test_a_connection_lost_in_the_transaction_sends_nothing(app: Celery, charge: Any) -> None:
    """Closing the connection inside ``atomic()`` ends the transaction in the database; the publish goes with it."""
    with transaction.atomic():
        Invoice.objects.create(number="1")
        charge.delay(1)
        connection.close()

    with transaction.atomic():
        Invoice.objects.create(number="2")
    assert queued_ids(app) == []


def test_publishes_come_in_order(app: Celery, charge: Any) -> None:
    """One commit sends in the order of the calls."""
    with transaction.atomic():
        ids = [charge.delay(number).id for number in range(5)]
    assert queued_ids(app) == ids


def test_a_publish_from_a_callback_of_the_commit_is_sent_at_once(app: Celery, charge: Any) -> None:
    """``transaction.on_commit(charge.delay)`` as before: the transaction is over when it runs."""
    with transaction.atomic():
        transaction.on_commit(lambda: charge.delay(1))
        first = charge.delay(0)
    ids = queued_ids(app)
    assert len(ids) == 2
    assert ids[1] == first.id


# --- savepoints --------------------------------------------------------------------------------------


def test_a_savepoint_that_is_released_keeps_its_publishes(app: Celery, charge: Any) -> None:
    """H130: nested ``atomic()`` sends with the outermost commit, not before."""
    with transaction.atomic():
        with transaction.atomic():
            result = charge.delay(1)
        assert queued_ids(app) == []
    assert queued_ids(app) == [result.id]


def test_a_savepoint_that_is_rolled_back_drops_its_own_publishes_only(app: Celery, charge: Any) -> None:
    """H130: the outer transaction commits, and what the inner one published is never sent."""
    with transaction.atomic():
        before = charge.delay("before")
        with pytest.raises(DatabaseError), transaction.atomic():
            dropped = charge.delay("dropped")
            with transaction.atomic():
                deeper = charge.delay("deeper")
            raise DatabaseError
        after = charge.delay("after")
        for result in (dropped, deeper):
            with pytest.raises(NotSentError) as refused:
                result.get(timeout=1)
            assert refused.value.rolled_back  # known at once, not only at the end
    assert queued_ids(app) == [before.id, after.id]


def test_savepoints_by_hand(app: Celery, charge: Any) -> None:
    """``transaction.savepoint_rollback`` drops what came after that savepoint."""
    with transaction.atomic():
        kept = charge.delay(1)
        savepoint = transaction.savepoint()
        charge.delay(2)
        transaction.savepoint_rollback(savepoint)
    ids = queued_ids(app)
    assert ids[0] == kept.id


def test_an_inner_block_without_savepoint_takes_all_with_it(app: Celery, charge: Any) -> None:
    """``atomic(savepoint=False)`` that fails makes the whole transaction roll back."""
    with transaction.atomic():
        charge.delay(1)
        with pytest.raises(ZeroDivisionError), transaction.atomic(savepoint=False):
            1 / 0  # noqa: B018
    assert queued_ids(app) == []


# --- several databases, several threads -----------------------------------------------------------------


def test_it_waits_for_every_database(app: Celery, charge: Any) -> None:
    """With two transactions open, the second commit sends, whichever it is."""
    with transaction.atomic():
        with transaction.atomic(using="other"):
            result = charge.delay(1)
        assert queued_ids(app) == []
    assert queued_ids(app) == [result.id]


@pytest.mark.parametrize("fails", ["default", "other"])
def test_a_rollback_of_one_database_drops_it(app: Celery, charge: Any, fails: str) -> None:
    """Whichever of two transactions rolls back, and whether it ends first or last."""
    with pytest.raises(ZeroDivisionError), transaction.atomic(using="default"):
        try:
            with transaction.atomic(using="other"):
                result = charge.delay(1)
                if fails == "other":
                    1 / 0  # noqa: B018
        except ZeroDivisionError:
            assert fails == "other"
            raise
        1 / 0  # noqa: B018
    assert queued_ids(app) == []
    with pytest.raises(NotSentError) as refused:
        result.get(timeout=1)
    assert refused.value.rolled_back


def test_a_rollback_of_one_database_drops_it_though_the_other_commits(app: Celery, charge: Any) -> None:
    """The inner one rolls back, the outer commits: not everything has committed, so nothing is sent."""
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic(using="other"):
            charge.delay(1)
            1 / 0  # noqa: B018
        kept = charge.delay(2)
    assert queued_ids(app) == [kept.id]


def test_a_database_without_a_transaction_does_not_matter(app: Celery, charge: Any) -> None:
    """H130: any alias counts, and only those inside ``atomic()``."""
    Invoice.objects.create(number="1")  # default is open, in autocommit
    with transaction.atomic(using="other"):
        result = charge.delay(1)
        assert queued_ids(app) == []
    assert queued_ids(app) == [result.id]


def test_a_transaction_of_another_thread_does_not_matter(app: Celery, charge: Any) -> None:
    """Connections belong to threads: a publish waits for its own thread's transactions only."""
    sent: list[str] = []

    def publish() -> None:
        sent.append(charge.delay(1).id)

    with transaction.atomic():
        thread = threading.Thread(target=publish)
        thread.start()
        thread.join(60)
        assert queued_ids(app) == sent
    assert len(sent) == 1


# --- where Django runs no hook ----------------------------------------------------------------------------


def test_with_autocommit_off_it_is_sent_at_once(app: Celery, charge: Any) -> None:
    """Without autocommit Django tells nobody of a commit, so a publish that waited would be lost."""
    transaction.set_autocommit(False)
    try:
        with transaction.atomic():
            result = charge.delay(1)
        assert queued_ids(app) == [result.id]
        result = charge.delay(2)
        assert queued_ids(app) == [result.id]
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    assert queued_ids(app) == []


# --- what waits, and what does not ------------------------------------------------------------------------


def test_contained_tasks_are_sent_at_once(app: Celery, plain: Any) -> None:
    """A task that is not hardened keeps Celery's behaviour; ``on_commit=True`` asks for ours."""
    with transaction.atomic():
        now = plain.delay()
        assert queued_ids(app) == [now.id]
        later = plain.apply_async(on_commit=True)
        assert queued_ids(app) == []
    assert queued_ids(app) == [later.id]


def test_one_call_opts_out(app: Celery, charge: Any) -> None:
    """``on_commit=False`` sends at once, and the option does not travel with the message."""
    with transaction.atomic():
        result = charge.apply_async((1,), on_commit=False)
        (message,) = take_queued(app)
        assert message.headers["id"] == result.id
        assert "on_commit" not in {**message.headers, **message.properties}


def test_the_setting_opts_out(app: Celery, charge: Any) -> None:
    """``hardened_publish_on_commit=False`` is Celery's behaviour, but for calls that ask otherwise."""
    configure(app, hardened_publish_on_commit=False)
    with transaction.atomic():
        now = charge.delay(1)
        assert queued_ids(app) == [now.id]
        later = charge.apply_async((1,), on_commit=True)
        assert queued_ids(app) == []
    assert queued_ids(app) == [later.id]


def test_a_dry_run_sends_at_once(app: Celery, charge: Any) -> None:
    """``hardened_observe`` changes nothing about when a task is sent."""
    configure(app, hardened_observe=True)
    with transaction.atomic():
        result = charge.delay(1)
        assert queued_ids(app) == [result.id]


def test_a_task_by_name(app: Celery) -> None:
    """``send_task`` waits for names that are hardened here; of an unknown one nobody can tell."""
    with transaction.atomic():
        known = app.send_task("shop.charge", (1,))
        unknown = app.send_task("elsewhere.charge", (1,))
        assert queued_ids(app) == [unknown.id]
        asked = app.send_task("elsewhere.charge", (1,), on_commit=True)
        assert queued_ids(app) == []
    assert queued_ids(app) == [known.id, asked.id]


def test_eager_tasks_run_at_once(app: Celery, charge: Any) -> None:
    """Under ``task_always_eager`` a ``TestCase`` never commits, so nothing waits: it runs inside the transaction."""
    app.conf.task_always_eager = True
    with transaction.atomic():
        assert charge.delay(7).get() == 7
        with pytest.warns(AlwaysEagerIgnored):
            result = app.send_task("shop.charge", (8,))  # which Celery sends in any case
        assert queued_ids(app) == [result.id]


def test_only_the_body_of_a_task_is_user_code(app: Celery, charge: Any) -> None:
    """Celery's own publishes around a body, and those that are marked, never wait; the body's do."""
    with transaction.atomic(), tracing():
        callback = charge.delay("callback")
        with running_body():
            waits = charge.delay("body")
            with immediately():
                retry = charge.delay("retry")
        link = charge.delay("link")
        assert queued_ids(app) == [callback.id, retry.id, link.id]
    assert queued_ids(app) == [waits.id]


def test_arguments_are_sent_as_they_were_at_the_call(app: Celery, charge: Any) -> None:
    """What is changed between the call and the commit does not reach the task."""
    lines = [{"sku": "a"}]
    with transaction.atomic():
        charge.delay(lines)
        lines[0]["sku"] = "b"
        lines.append({"sku": "c"})
    (message,) = take_queued(app)
    assert message.payload[0] == [[{"sku": "a"}]]


def test_arguments_that_cannot_be_sent_fail_the_call_not_the_commit(app: Celery, charge: Any) -> None:
    """The error comes while there is still something to roll back."""
    with pytest.raises(EncodeError), transaction.atomic():
        Invoice.objects.create(number="1")
        charge.delay(object())
    assert Invoice.objects.count() == 0
    with pytest.raises(EncodeError), transaction.atomic():
        charge.apply_async((1,), link=charge.si(object()))
    assert queued_ids(app) == []


# --- workflows --------------------------------------------------------------------------------------------


def test_a_group_is_sent_whole_or_not_at_all(app: Celery, charge: Any) -> None:
    """All members at the commit; none after a rollback."""
    with transaction.atomic():
        result = group(charge.s(number) for number in range(3)).apply_async()
        assert queued_ids(app) == []
    assert queued_ids(app) == [one.id for one in result.results]

    with transaction.atomic():
        group(charge.s(number) for number in range(3)).apply_async()
        transaction.set_rollback(True)
    assert queued_ids(app) == []


def test_a_chain_is_sent_with_its_first_link(app: Celery, charge: Any) -> None:
    """Its tail travels in that message."""
    with transaction.atomic():
        result = chain(charge.s(1), charge.s(), charge.s()).apply_async()
        assert queued_ids(app) == []
    (message,) = take_queued(app)
    assert message.headers["id"] == result.parent.parent.id
    assert len(message.payload[2]["chain"]) == 2

    with transaction.atomic():
        chain(charge.s(1), charge.s()).apply_async()
        transaction.set_rollback(True)
    assert queued_ids(app) == []


@pytest.mark.parametrize("app", [{}, {"result_backend": "file://"}], indirect=True, ids=["counts", "polls"])
def test_a_chord_is_sent_with_the_commit(app: Celery, charge: Any) -> None:
    """Its header, and the task that polls for it where the result backend cannot count; nothing after a rollback."""
    polls = app.conf.result_backend.startswith("file")
    body = app.tasks["shop.total"].s()
    with transaction.atomic():
        chord([charge.s(1), charge.s(2)], body).apply_async()
        assert queued_ids(app) == []
    names = sorted(message.headers["task"] for message in take_queued(app))
    assert names == ["celery.chord_unlock"] * polls + ["shop.charge", "shop.charge"]

    with transaction.atomic():
        chord([charge.s(1), charge.s(2)], body).apply_async()
        transaction.set_rollback(True)
    assert queued_ids(app) == []  # no poller that asks for ever


# --- failures after the commit ------------------------------------------------------------------------------


def test_a_broker_that_is_away_for_a_moment_is_tried_again(app: Celery, charge: Any, broken: list[str]) -> None:
    """After the commit nobody else can try again: it is tried for ``hardened_publish_timeout`` seconds."""
    configure(app, hardened_publish_timeout=60)
    threading.Timer(0.5, broken.clear).start()
    with transaction.atomic():
        result = charge.delay(1)
    assert queued_ids(app) == [result.id]
    assert result.sent


def test_a_publish_that_fails_is_an_error_a_letter_and_a_line(
    app: Celery, charge: Any, broken: list[str], hardening: Hardening, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit stands; the caller gets ``PublishFailedError``; what was to be sent is a dead letter."""
    hardening.metrics.keep_here()
    with pytest.raises(PublishFailedError) as failed, transaction.atomic():
        Invoice.objects.create(number="1")
        result = charge.delay("i-1", note="a secret")

    assert Invoice.objects.count() == 1
    assert failed.value.tasks == [f"shop.charge[{result.id}]"]
    with pytest.raises(PublishFailedError):
        result.get(timeout=1)
    (record,) = [one for one in caplog.records if one.levelno == logging.CRITICAL]
    assert record.name == "celery_hardened.publish"
    assert (record.task, record.task_id, record.arg_invoice) == ("shop.charge", result.id, "i-1")  # type: ignore[attr-defined]
    assert record.queue == app.conf.task_default_queue  # type: ignore[attr-defined]
    assert "a secret" not in caplog.text
    (stored,) = hardening.dead_letters.find(Query()).letters
    assert (stored.letter.reason, stored.letter.task_id) == ("unsent", result.id)
    queue = app.conf.task_default_queue
    results = {result: n for (_, at, result), n in hardening.metrics.registry.values(PUBLISHED).items() if at == queue}
    assert results == {"deferred": 1, "unsent": 1}  # its tries are no results of their own


def test_all_of_a_commit_are_tried_before_one_error_comes_out(
    app: Celery, charge: Any, broken: list[str], hardening: Hardening
) -> None:
    """Django stops at the first callback that raises. Publishes of one commit do not lose each other."""
    with pytest.raises(PublishFailedError) as failed, transaction.atomic():
        ids = [charge.delay(number).id for number in range(2)]
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            charge.delay("dropped")  # its savepoint takes it away: nobody is to wait for it
            1 / 0  # noqa: B018
        transaction.on_commit(broken.clear)
        ids.append(charge.delay("sent").id)

    assert queued_ids(app) == ids[2:]
    assert failed.value.tasks == [f"shop.charge[{one}]" for one in ids[:2]]

    with transaction.atomic():
        later = charge.delay(1)  # the connection goes on as if nothing had been
    assert queued_ids(app) == [later.id]


def test_one_commit_waits_once_however_many_it_sends(app: Celery, charge: Any, broken: list[str]) -> None:
    """The time limit is the commit's: fifty publishes do not make a request wait fifty times."""
    configure(app, hardened_publish_timeout=3)  # on a busy machine the pause before the second try may be long
    with pytest.raises(PublishFailedError) as failed, transaction.atomic():
        ids = [charge.delay(number).id for number in range(50)]
    assert len(failed.value.tasks) == 50
    tries = [broken.count(one) for one in ids]
    assert tries[0] > 1
    # Once each; on a machine so slow that as long again is over, the last of them not at all.
    assert set(tries[1:]) <= {0, 1}
    assert tries[1:] == sorted(tries[1:], reverse=True)


def test_a_callback_of_the_users_that_raises_takes_later_publishes_with_it(app: Celery, charge: Any) -> None:
    """As documented: Django skips all callbacks after one that raises, ours too, unless it is robust."""
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        first = charge.delay(1)
        transaction.on_commit(lambda: 1 / 0)
        charge.delay(2)
    assert queued_ids(app) == [first.id]

    with transaction.atomic():
        transaction.on_commit(lambda: 1 / 0, robust=True)
        result = charge.delay(3)
    assert queued_ids(app) == [result.id]


def test_an_error_of_a_skipped_commit_does_not_hold_up_the_next_one(
    app: Celery, charge: Any, broken: list[str]
) -> None:
    """Hooks that Django skipped live on in a traceback; the next transaction does not wait for them."""
    with pytest.raises(ZeroDivisionError) as held, transaction.atomic():
        transaction.on_commit(lambda: 1 / 0)
        skipped = charge.delay(1)
    with pytest.raises(PublishFailedError) as failed, transaction.atomic():
        result = charge.delay(2)
    assert failed.value.tasks == [f"shop.charge[{result.id}]"]
    assert held.tb is not None
    assert skipped.id not in broken


def test_every_alias_of_the_project_was_closed() -> None:
    """What the tests here rest on: none of them leaves a transaction to the next."""
    assert not any(connections[alias].in_atomic_block for alias in connections.settings)
