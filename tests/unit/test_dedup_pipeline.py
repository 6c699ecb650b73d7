"""Deduplication at the publish, step by step: first ones, duplicates, failures, retries, replacements."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from celery import Celery
from celery._state import _task_stack

from celery_hardened import DuplicateTaskError, Hardening, StoreUnavailableError, UnusableKeyError, harden
from celery_hardened.marks import HEADER, REFERENCE, Marks
from celery_hardened.pipeline.dedup import answer, enter
from celery_hardened.pipeline.held_windows import ended
from tests.support.dedup_shop import LEASE, WEEK, Shop, running


@pytest.fixture
def shop() -> Shop:
    return Shop()


# --- the publish --------------------------------------------------------------------------------------


def test_the_second_publish_of_a_key_is_refused(shop: Shop) -> None:
    """By one step each; another key is another matter, and arguments that are not named do not matter."""
    task = shop.task()
    first = shop.enter(task, 1, "a")
    second = shop.enter(task, 1, "b", task_id="t2")
    other = shop.enter(task, 2, task_id="t3")
    assert (first.refused_by, second.refused_by, other.refused_by) == (None, "t1", None)
    assert first.mark is not None
    assert second.mark is None
    key, until = first.mark
    assert key.startswith("shop.work:1:")
    assert until == "finish"
    assert shop.store.steps == 3


def test_a_task_without_it_costs_nothing(shop: Shop) -> None:
    """Nor one that this process does not know, nor anything in a dry run."""

    @shop.app.task
    def plain(number: int) -> None: ...

    assert enter(shop.hardening, plain, plain.name, (1,), {}, {}, "t1") is None
    assert enter(shop.hardening, None, "elsewhere.task", (1,), {}, {}, "t1") is None
    assert shop.store.steps == 0

    app = Celery("dry", broker="memory://", set_as_current=False)
    app.conf.update(hardened_dead_letter_store="memory", hardened_observe=True)
    harden(app)
    assert enter(Hardening.expect(app), shop.task(), "shop.work", (1,), {}, {}, "t1") is None


def test_return_gives_the_first_tasks_result(shop: Shop) -> None:
    task = shop.task(on_duplicate="return")
    shop.enter(task)
    result = answer(shop.enter(task, task_id="t2"))
    assert result.id == "t1"
    assert type(result) is type(task.AsyncResult("t1"))


def test_raise_names_the_first_task(shop: Shop) -> None:
    task = shop.task(on_duplicate="raise")
    shop.enter(task)
    with pytest.raises(DuplicateTaskError) as caught:
        answer(shop.enter(task, task_id="t2"))
    assert (caught.value.task, caught.value.task_id) == ("shop.work", "t1")


def test_drop_returns_nothing(shop: Shop) -> None:
    task = shop.task(on_duplicate="drop")
    shop.enter(task)
    assert answer(shop.enter(task, task_id="t2")) is None


def test_each_refusal_is_logged(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """With the task that was first, and no argument."""
    caplog.set_level("INFO", "celery_hardened.dedup")
    task = shop.task()
    shop.enter(task)
    answer(shop.enter(task, task_id="t2"))
    (record,) = caplog.records
    assert (record.task, record.reason, record.task_id) == ("shop.work", "duplicate", "t1")  # type: ignore[attr-defined]


def test_arguments_that_make_no_key_are_an_error_of_the_publish(shop: Shop) -> None:
    task = shop.task()
    with pytest.raises(UnusableKeyError):
        enter(shop.hardening, task, task.name, (object(),), {}, {}, "t1")
    with pytest.raises(UnusableKeyError):
        enter(shop.hardening, task, task.name, (), {"nonsense": 1}, {}, "t1")
    assert shop.store.steps == 0


def test_what_celery_can_serialise_can_be_keyed(shop: Shop) -> None:
    """Through the serializer, where the canonical text knows no such type."""

    class Ticket:
        def __json__(self) -> dict[str, int]:
            return {"number": 7}

    task = shop.task()
    assert shop.enter(task, Ticket()).mark == shop.enter(task, {"number": 7}).mark


def test_members_of_a_workflow_take_the_key_if_it_is_free_and_are_never_refused(shop: Shop) -> None:
    task = shop.task(on_duplicate="raise")
    first = shop.enter(task, task_id="t1", group_id="g")
    second = shop.enter(task, task_id="t2", group_id="g")
    outside = shop.enter(task, task_id="t3")
    assert (first.refused_by, second.refused_by, outside.refused_by) == (None, None, "t1")
    assert first.mark is not None
    assert second.mark is None, "it has no key to give back"


def test_arguments_that_were_put_away_before_the_publish_make_no_key(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a step of a workflow; it is neither refused nor warned of, and takes no key."""
    task = shop.task()
    kwargs: dict[str, Any] = {REFERENCE: {"v": 1, "name": "0" * 32}}
    for chained in (False, True):
        options: dict[str, Any] = {"chain": []} if chained else {}
        assert enter(shop.hardening, task, task.name, (), kwargs, options, "t1") is None
    assert shop.store.steps == 0
    assert caplog.records == []


def test_a_workflow_goes_on_though_no_key_can_be_taken(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    task = shop.task()
    assert enter(shop.hardening, task, task.name, (object(),), {}, {"chain": []}, "t1") is None
    shop.store.down = True
    window = shop.enter(task, task_id="t1", chain=[])
    assert window.refused_by is None
    assert len(caplog.records) == 2


def in_seconds(seconds: float) -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, WEEK + 300 + LEASE),
        ({"countdown": 3600}, 3600 + WEEK + 300 + LEASE),
        ({"eta": lambda: in_seconds(3600)}, 3600 + WEEK + 300 + LEASE),
        ({"eta": lambda: in_seconds(3600).isoformat()}, 3600 + WEEK + 300 + LEASE),
        ({"eta": "nonsense"}, WEEK + 300 + LEASE),
        ({"time_limit": 1000}, WEEK + 1000 + LEASE),
        ({"expires": 60}, 60 + LEASE),
        ({"expires": lambda: in_seconds(60)}, 60 + LEASE),
        ({"expires": None}, WEEK + 300 + LEASE),
    ],
    ids=["plain", "countdown", "eta", "iso eta", "bad eta", "time limit", "expires", "expires at", "no expiry"],
)
def test_the_key_is_held_as_long_as_its_message_can_live(shop: Shop, options: Any, seconds: float) -> None:
    # Moments are counted from now, not from when the module was read.
    shop.enter(shop.task(), **{name: value() if callable(value) else value for name, value in options.items()})
    assert shop.store.left == pytest.approx(seconds, abs=30)


def test_the_expiry_of_a_task_counts_where_the_publish_has_none(shop: Shop) -> None:
    """``send_task`` by name adds it after this step."""
    shop.enter(shop.task(task_options={"expires": 60}))
    assert shop.store.left == 60 + LEASE


# --- a publish that fails -----------------------------------------------------------------------------


def test_a_failed_publish_frees_the_key(shop: Shop) -> None:
    task = shop.task()
    shop.enter(task).publish_failed(TypeError("not serializable"))
    assert shop.enter(task, task_id="t2").refused_by is None


def test_an_ambiguous_one_keeps_it_for_a_lease(shop: Shop) -> None:
    """The message may have arrived."""
    task = shop.task()
    shop.enter(task).publish_failed(ConnectionResetError(104, "reset"))
    assert shop.enter(task, task_id="t2").refused_by == "t1"
    shop.clock[0] += LEASE + 1
    assert shop.enter(task, task_id="t3").refused_by is None


def test_a_certain_failure_after_an_ambiguous_one_keeps_it_for_a_lease(shop: Shop) -> None:
    """Of the same task, sent again after its commit: the message of the first try may be there."""
    task = shop.task()
    enter = partial(shop.enter, task, maybe_sent=True)
    enter().publish_failed(ConnectionRefusedError(111, "refused"))
    assert shop.enter(task, task_id="t2").refused_by == "t1"
    assert shop.store.left == LEASE
    shop.store.down = True
    with pytest.raises(StoreUnavailableError):
        enter()
    shop.store.down = False
    shop.renewal.round()
    assert shop.store.owners == {"t1"}
    shop.clock[0] += LEASE + 1
    assert shop.enter(task, task_id="t3").refused_by is None


def test_the_trouble_a_caller_handles_is_not_the_publishs(shop: Shop) -> None:
    """A publish in an ``except`` block, whose broker refuses the connection."""
    task = shop.task()
    try:
        raise RuntimeError("the caller's own")
    except RuntimeError:
        window = shop.enter(task)
        try:
            raise ConnectionRefusedError(111, "refused")
        except ConnectionRefusedError as error:
            window.publish_failed(error)
    assert shop.store.owners == set()


def test_a_key_that_cannot_be_freed_now_is_freed_later(shop: Shop) -> None:
    task = shop.task()
    window = shop.enter(task)
    shop.store.down = True
    window.publish_failed(TypeError("not serializable"))
    shop.store.down = False
    shop.renewal.round()
    assert shop.store.owners == set()


def test_a_store_that_does_not_answer_refuses_the_publish(shop: Shop) -> None:
    """Nothing was sent; and if only the answer was lost, the key does not stay behind."""
    task = shop.task()
    shop.store.mute = True
    with pytest.raises(StoreUnavailableError):
        shop.enter(task)
    assert shop.store.owners == {"t1"}
    shop.store.mute = False
    shop.renewal.round()
    assert shop.store.owners == set()


def test_the_caller_may_try_again_with_the_same_id(shop: Shop) -> None:
    """What was to be freed is his again."""
    task = shop.task()
    shop.store.mute = True
    with pytest.raises(StoreUnavailableError):
        shop.enter(task)
    shop.store.mute = False
    assert shop.enter(task).refused_by is None
    shop.renewal.round()
    assert shop.store.owners == {"t1"}


def test_a_task_may_be_sent_without_its_key(shop: Shop) -> None:
    """Opt-in. It carries its mark, since its key may have been taken."""
    task = shop.task(on_store_error="send")
    shop.store.down = True
    window = shop.enter(task)
    assert window.refused_by is None
    assert window.mark is not None


# --- retries ------------------------------------------------------------------------------------------


def test_a_retry_passes_its_own_key_and_keeps_it(shop: Shop) -> None:
    """It is not refused, and no twin comes in between (H117)."""
    task = shop.task()
    first = shop.enter(task)
    shop.start(task, first)
    shop.retry(task, first)
    assert shop.enter(task, task_id="t2").refused_by == "t1"


def test_a_retry_holds_its_key_for_another_wait(shop: Shop) -> None:
    """However late it is."""
    task = shop.task()
    first = shop.enter(task)
    shop.clock[0] += WEEK
    shop.retry(task, first)
    assert shop.store.left == WEEK + 300 + LEASE


def test_a_retry_whose_key_another_has_passes_too(shop: Shop) -> None:
    task = shop.task()
    first = shop.enter(task)
    shop.store.free(first.key)
    assert shop.enter(task, task_id="t2").refused_by is None
    shop.retry(task, first)
    assert shop.store.owners == {"t2"}


def test_a_retry_passes_while_the_store_is_down(shop: Shop) -> None:
    """A retry that is refused is a task that is lost."""
    task = shop.task()
    first = shop.enter(task)
    shop.store.down = True
    shop.retry(task, first)


def test_a_retry_that_cannot_be_sent_keeps_the_key(shop: Shop) -> None:
    """Its message goes back to the broker, or becomes a letter, and that frees it."""
    task = shop.task()
    first = shop.enter(task)
    with pytest.raises(ConnectionRefusedError):
        shop.retry(task, first, fails=ConnectionRefusedError(111, "refused"))
    assert shop.store.owners == {"t1"}


def test_a_retry_of_a_task_that_had_no_key_has_none(shop: Shop) -> None:
    """It was published before the decorator was deployed, or by a plain producer."""
    task = shop.task()
    assert enter(shop.hardening, task, task.name, (1,), {}, {"retries": 1}, "t1") is None
    assert shop.store.steps == 0


def test_a_retry_takes_no_key_that_the_start_has_freed(shop: Shop) -> None:
    task = shop.task(until="start")
    first = shop.enter(task)
    shop.start(task, first)
    shop.retry(task, first)
    assert shop.store.owners == set()


def test_a_retry_does_not_lengthen_a_window(shop: Shop) -> None:
    task = shop.task(until=timedelta(seconds=600))
    first = shop.enter(task)
    shop.clock[0] += 100
    shop.retry(task, first)
    assert shop.store.left == 500


def test_a_task_that_replaces_itself_keeps_its_key(shop: Shop) -> None:
    """Under the same id; the end of the first is not the end of the work."""
    task = shop.task()
    first = shop.enter(task)
    with running(task, called_directly=False, headers={HEADER: Marks(dedup=first.mark).header()}):
        _task_stack.push(task)
        try:
            again = shop.enter(task)
        finally:
            _task_stack.pop()
    shop.end(first, well=True)
    assert shop.store.owners == {"t1"}
    shop.end(again, well=True)
    assert shop.store.owners == set()


@pytest.mark.parametrize("until", ["finish", timedelta(days=1)], ids=["finish", "window"])
def test_a_task_that_is_replaced_by_one_of_another_key_hands_nothing_on(shop: Shop, until: Any) -> None:
    """The replacement ends under the same id, and has a key of its own to give back (or a window to keep)."""
    task = shop.task(until=until)
    with running(task, called_directly=False, headers={HEADER: Marks(dedup=("other:1:ab", "finish")).header()}):
        _task_stack.push(task)
        try:
            window = shop.enter(task)
        finally:
            _task_stack.pop()
    ended(shop.hardening, Marks(dedup=("other:1:ab", "finish")), "t1", well=True)
    assert shop.store.owners == {"t1"}, "the replacement waits"
    ended(shop.hardening, Marks(dedup=window.mark), "t1", well=True)
    assert shop.store.owners == (set() if until == "finish" else {"t1"})


# --- a publish that was deferred ----------------------------------------------------------------------


def test_a_deferred_publish_is_refused_though_it_has_a_parent(shop: Shop) -> None:
    """Its options name its parent, as those of a callback do; whether somebody waits was decided before."""
    task = shop.task()
    shop.enter(task)
    options = {"root_id": "r", "parent_id": "p"}
    asked = [
        enter(shop.hardening, task, task.name, (1,), {}, options, "t2", awaited=awaited)
        for awaited in (False, True, None)
    ]
    assert [window and window.refused_by for window in asked] == ["t1", None, None]
