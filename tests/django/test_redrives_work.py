"""A worker's side of bulk actions, slice by slice: what is sent, counted once, and left alone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from django.contrib.auth.models import User
from django.db import connections
from django.db.models.functions import Now

from celery_hardened import Hardening
from celery_hardened.contrib.django.dead_letters import bulk, bulk_deal, bulk_task, bulk_work
from celery_hardened.contrib.django.dead_letters.bulk_work import BulkWork
from celery_hardened.contrib.django.models import BulkAction, BulkActionLetter
from celery_hardened.dead_letter import outlet
from celery_hardened.dead_letter.contract import DeadLetterStore, Query
from celery_hardened.errors import StoreUnavailableError
from tests.stores.letters import letter, redriven
from tests.support import django_project
from tests.support.admin_letters import in_memory, store_of_the_app  # noqa: F401 - the latter is a fixture
from tests.support.django_schedules import statements


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    django_project.empty("default", "celery_hardened")
    yield
    django_project.empty("default", "celery_hardened")
    User.objects.all().delete()


def asker() -> Any:
    """Who asks for bulk actions here, with all permissions."""
    return User.objects.get_or_create(username="ada", defaults={"is_superuser": True})[0]


@pytest.fixture
def put(store: DeadLetterStore, app: Celery) -> Any:
    """Puts so many letters, whose queue there is, into the store; their ids."""

    def put(number: int, **fields: Any) -> list[str]:
        queue = str(app.conf.task_default_queue)
        made = [letter(queue=queue, **fields) for _ in range(number)]
        for one in made:
            store.put(one)
        return [one.id for one in made]

    return put


def asked(store: DeadLetterStore, query: Query = Query(), **fields: Any) -> BulkAction:  # noqa: B008
    """A redrive of all that match now, as the admin asks for one."""
    given = {"what": "redrive", "by": "ada", "user_id": str(asker().pk), "why": "mended", **fields}
    query = query if query.ids else bulk.until_newest(store, query)
    made: BulkAction = BulkAction.objects.create(
        key=uuid.uuid4().hex, query=bulk.dumped(query), total=store.count(query), asked_at=Now(), **given
    )
    return made


def delivered(app: Celery, action: BulkAction, task_id: str | None = None, **options: Any) -> float | None:
    """One message about *action* arrives, after the pause if there is one, and is worked on; the pause it asks for."""
    BulkAction.objects.filter(pk=action.pk, token="").update(held_until=None)
    taken = bulk.take(action.pk, task_id=task_id or uuid.uuid4().hex)
    if taken is None:
        return None
    work = BulkWork(app, taken, **{"sleep": lambda _: None, **options})
    pause = work.slice()
    if pause is not None:
        assert work.hand_over(pause)
    action.refresh_from_db()
    return pause


def carried_out(app: Celery, action: BulkAction) -> BulkAction:
    """One message after the other, until there is nothing left to do."""
    for _ in range(50):
        if delivered(app, action) is None:
            return action
    raise AssertionError(action.state)


def test_all_that_were_shown_and_no_other(app: Celery, store: DeadLetterStore, put: Any) -> None:
    """Each is sent once under the reason; what came after the question is left alone, and so is what does not match."""
    mine = put(250)
    other = put(1, task="shop.mail")[0]
    action = asked(store, Query(task="shop.charge"))
    later = put(1)[0]
    carried_out(app, action)
    assert (action.state, action.total, action.done, action.dealt_with) == ("done", 250, 250, 250)
    assert {store.get(one).state for one in mine} == {"redriven"}
    assert {store.get(one).state for one in (other, later)} == {"dead"}
    entry = store.get(mine[0]).audit[-1]
    assert (entry.by, entry.why) == ("ada", f"mended (bulk action {action.pk})")
    assert delivered(app, action) is None, "it has ended"


def test_what_is_not_sent_is_told_apart(app: Celery, store: DeadLetterStore, put: Any) -> None:
    """Refused with its reason; left alone because somebody closed it between the listing and its turn."""
    put(2)
    put(1, redrives=9)
    closed = put(1)[0]
    action = asked(store)
    work = BulkWork(app, taken(action))
    work._list()
    work.hand_over(0.0)
    store.discard(closed, by="ann", why="obsolete")
    carried_out(app, action)
    assert (action.done, action.refused, action.left, action.total) == (2, 1, 1, 4)
    reasons = dict(BulkActionLetter.objects.exclude(outcome="done").values_list("outcome", "why"))
    assert "redriven 9 times" in reasons["refused"]
    assert reasons["left"] == "it is discarded already."


def taken(action: BulkAction) -> BulkAction:
    found = bulk.take(action.pk, task_id=uuid.uuid4().hex)
    assert found is not None
    return found


@in_memory
def test_a_dry_run_sends_nothing(app: Celery, store: DeadLetterStore, put: Any) -> None:
    """It counts, and tells the reasons."""
    put(3)
    put(1, redrives=9)
    action = carried_out(app, asked(store, dry_run=True, canary=1, rate=0.001))
    assert (action.state, action.done, action.refused) == ("done", 3, 1)
    assert store.count(Query(state="dead")) == 4


def test_discard(app: Celery, store: DeadLetterStore, put: Any) -> None:
    """Each of them, once."""
    mine = put(120)
    action = carried_out(app, asked(store, what="discard"))
    assert (action.state, action.done) == ("done", 120)
    assert {store.get(one).state for one in mine} == {"discarded"}


def test_letters_named_by_id(app: Celery, store: DeadLetterStore, put: Any) -> None:
    """Those that are open no more are counted too."""
    mine = put(3)
    store.discard(mine[0], by="ann", why="x")
    action = carried_out(app, asked(store, Query(ids=tuple(mine))))
    assert (action.total, action.done, action.left) == (3, 2, 1)


@pytest.mark.parametrize("after", ["sending", "some", "listing"])
def test_killed_before_it_is_noted(
    app: Celery,
    store: DeadLetterStore,
    put: Any,
    monkeypatch: pytest.MonkeyPatch,
    after: str,
) -> None:
    """Letters that were sent, and not written down as such, are neither sent again nor counted as somebody else's."""
    mine = put(5)
    action = asked(store)
    monkeypatch.setattr(bulk_work, "_LISTED_AT_A_TIME", 2)

    class KilledError(BaseException):
        pass

    with monkeypatch.context() as patch:

        def killed(*_: Any) -> None:
            raise KilledError

        if after == "listing":
            listed = BulkWork._listed
            calls: list[int] = []

            def second(work: BulkWork, letters: Any) -> None:
                calls.append(1)
                killed() if len(calls) == 2 else listed(work, letters)

            patch.setattr(BulkWork, "_listed", second)
        elif after == "some":
            patch.setattr(bulk_deal, "_together", _first_only)
        patch.setattr(BulkWork, "_note", killed)
        with pytest.raises(KilledError):
            delivered(app, action, "m1")
    sent = {one: len(store.get(one).audit) for one in mine if store.get(one).state == "redriven"}
    assert len(sent) == {"sending": 5, "some": 1, "listing": 0}[after]
    assert delivered(app, action, "m2") is None, "another message leaves it to the one that holds it"
    action.refresh_from_db()
    assert action.done == 0
    assert delivered(app, action, "m1") is None, "its own message, redelivered, goes on at once"
    assert (action.state, action.total, action.done, action.left) == ("done", 5, 5, 0)
    assert {one: len(store.get(one).audit) for one in mine} == dict.fromkeys(mine, 1), "none was sent twice"


def _first_only(hardening: Hardening, action: BulkAction, ids: list[str], found: Any) -> Any:
    hardening.redrive(Query(ids=(ids[0],)), by=action.by, why=bulk_deal.marked(action))
    return {}, None


@in_memory
def test_a_first_delivery_that_lives_after_all_stops(app: Celery, store: DeadLetterStore, put: Any) -> None:
    """The redelivery has taken over; what the first one writes is refused, and counts nothing twice."""
    put(3)
    action = asked(store)
    first = BulkWork(app, taken_as(action, "m1"))
    second = BulkWork(app, taken_as(action, "m1"))
    assert first.slice() is None
    action.refresh_from_db()
    assert (action.state, action.done) == ("waiting", 0), "it has done nothing"
    with pytest.raises(bulk_work.SupersededError):
        first._note({one: ("done", "") for one in store.ids(Query())})
    assert second.slice() is None
    action.refresh_from_db()
    assert (action.state, action.done) == ("done", 3)


def taken_as(action: BulkAction, task_id: str) -> BulkAction:
    found = bulk.take(action.pk, task_id=task_id)
    assert found is not None
    return found


@in_memory
def test_sent_by_the_delivery_that_was_taken_over_from(
    app: Celery, store: DeadLetterStore, put: Any, hardening: Hardening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had begun with the letters, and ends them while they are looked at: they are its action's all the same."""
    put(2)
    action = asked(store)
    redrive = hardening.redrive

    def twice(query: Query, **options: Any) -> Any:
        redrive(query, **options)
        return redrive(query, **options)

    monkeypatch.setattr(hardening, "redrive", twice)
    carried_out(app, action)
    assert (action.state, action.done, action.refused) == ("done", 2, 0)


@in_memory
def test_stop(app: Celery, store: DeadLetterStore, put: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks before every step; what was not dealt with is as it was."""
    put(250)
    action = asked(store)
    note = BulkWork._note

    def noted(work: BulkWork, outcomes: Any) -> None:
        note(work, outcomes)
        BulkAction.objects.filter(pk=action.pk).update(stop_by="bob")

    monkeypatch.setattr(BulkWork, "_note", noted)
    carried_out(app, action)
    assert (action.state, action.done, action.note) == ("stopped", 100, "bob stopped it.")
    assert store.count(Query(state="dead")) == 150


class Clock:
    """Time that passes as it is slept."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


@in_memory
def test_a_rate(
    app: Celery,
    store: DeadLetterStore,
    put: Any,
    hardening: Hardening,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So many a second; a slice ends after some seconds, and long pauses are spent in the broker."""
    put(45)
    clock = Clock()
    redrive = hardening.redrive
    monkeypatch.setattr(hardening, "redrive", lambda *a, **o: redrive(*a, clock=clock, sleep=clock.sleep, **o))
    action = asked(store, rate=4.0)
    options: dict[str, Any] = {"clock": clock, "sleep": clock.sleep}
    assert delivered(app, action, **options) == 0.0
    assert 4.0 * clock.at - 1 <= action.done <= 4.0 * clock.at
    assert bulk_work.SLICE <= clock.at <= bulk_work.SLICE + 2
    while delivered(app, action, **options) is not None:
        pass
    assert action.done == 45
    assert clock.at == pytest.approx(45 / 4.0)
    put(2)
    slow = asked(store, rate=0.05)
    assert delivered(app, slow, **options) == pytest.approx(20.0)
    assert slow.done == 1


@pytest.fixture
def message(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Delivers the message of an id, as a worker has it; the countdowns of those that were published for it."""

    def message(action: BulkAction, task_id: str) -> list[float | None]:
        published: list[float | None] = []
        with monkeypatch.context() as patch:
            patch.setattr(bulk, "ask", lambda _app, _pk, countdown=None: published.append(countdown))
            patch.setattr(bulk_task.time, "sleep", lambda _: None)
            bulk_task.go_on(SimpleNamespace(app=app, request=SimpleNamespace(id=task_id)), action.pk)
        action.refresh_from_db()
        return published

    return message


@in_memory
def test_more_messages_make_it_no_faster(app: Celery, store: DeadLetterStore, put: Any, message: Any) -> None:
    """Asked to go on twice, and a redelivery: in a pause of the rate they come again, and send nothing."""
    put(3)
    action = asked(store, rate=0.05)
    assert message(action, "m1") == [pytest.approx(20.0, abs=5.0)]
    for one in ("m1", "m2", "m3"):
        (again,) = message(action, one)
        assert again == pytest.approx(20.0, abs=5.0)
    assert action.done == 1
    BulkAction.objects.update(held_until=Now())
    assert message(action, "m3") == [pytest.approx(20.0, abs=5.0)]
    assert message(action, "m2") == [pytest.approx(20.0, abs=5.0)]
    assert action.done == 2


@in_memory
def test_a_long_pause_is_cut_up(app: Celery, store: DeadLetterStore, put: Any, message: Any) -> None:
    """No message waits in the broker for hours, and the button to stop need not wait for it."""
    put(2)
    action = asked(store, rate=0.001)
    assert message(action, "m1") == [60.0]
    assert message(action, "m2") == [60.0]
    assert bulk.actions().get(pk=action.pk).held is False
    assert not BulkAction.objects.filter(bulk.WORKED_ON).exists()


@in_memory
def test_killed_between_letting_go_and_publishing(
    app: Celery, store: DeadLetterStore, put: Any, message: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own message, which was not acked, comes again and sees that one goes on."""
    put(2)
    action = asked(store, rate=0.05)

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bulk, "ask", killed)
        with pytest.raises(KeyboardInterrupt):
            bulk_task.go_on(SimpleNamespace(app=app, request=SimpleNamespace(id="m1")), action.pk)
    assert len(message(action, "m1")) == 1
    assert action.done == 1


@in_memory
def test_taken_over_before_it_lets_go(app: Celery, store: DeadLetterStore, put: Any) -> None:
    """It ends like any that has nothing left to do, and publishes nothing."""
    put(1)
    action = asked(store)
    work = BulkWork(app, taken_as(action, "m1"))
    taken_as(action, "m1")
    assert work.hand_over(0.0) is False


@in_memory
def test_stopped_while_it_lists(app: Celery, store: DeadLetterStore, put: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the letters that are being written down, not after all of them."""
    put(10)
    action = asked(store)
    monkeypatch.setattr(bulk_work, "_LISTED_AT_A_TIME", 2)
    listed = BulkWork._listed

    def then_stop(work: BulkWork, letters: Any) -> None:
        listed(work, letters)
        BulkAction.objects.filter(pk=action.pk).update(stop_by="bob")

    monkeypatch.setattr(BulkWork, "_listed", then_stop)
    carried_out(app, action)
    assert (action.state, action.note) == ("stopped", "bob stopped it.")
    assert BulkActionLetter.objects.count() == 2


def test_a_canary_goes_first(app: Celery, store: DeadLetterStore, put: Any) -> None:
    """The others wait until all of it have succeeded, and the process is free meanwhile."""
    mine = put(5)
    action = asked(store, canary=2)
    assert delivered(app, action) == bulk_work._LOOK
    assert (action.state, action.done) == ("watching", 2)
    assert delivered(app, action) == bulk_work._LOOK
    assert store.count(Query(state="dead")) == 3
    for one in mine[:2]:
        store.resolve(one, by="worker", why="")
    carried_out(app, action)
    assert (action.state, action.done) == ("done", 5)
    assert action.canary_said == "2 succeeded, 0 died again, 0 had not finished"


def test_a_canary_that_dies_stops_it(app: Celery, store: DeadLetterStore, put: Any) -> None:
    """At once, with the verdict; the others are as they were. Who lets half of it fail goes on."""
    mine = put(4)
    action = asked(store, canary=2)
    delivered(app, action)
    store.put(redriven(store.get(mine[0]).letter))
    carried_out(app, action)
    assert (action.state, action.done) == ("stopped", 2)
    assert "Of 2 canary letters 1 died again" in action.note
    assert store.count(Query(state="dead", task="shop.charge")) == 3


@in_memory
def test_a_canary_of_letters_that_another_redrive_holds(app: Celery, store: DeadLetterStore, put: Any) -> None:
    """It waits for them: where all are held, none would be tried, and all sent as soon as they are free."""
    mine = put(3)
    store.begin_redrive(mine, token="t", by="ann", why="", lease=600)
    action = asked(store, canary=1)
    assert delivered(app, action) == bulk_work._HELD_LOOK
    assert (action.state, action.done) == ("canary", 0)
    store.cancel_redrive(mine, token="t", why="ended")
    assert delivered(app, action) == bulk_work._LOOK
    assert (action.state, action.done) == ("watching", 1)


@in_memory
def test_a_canary_that_does_not_end_in_time(app: Celery, store: DeadLetterStore, put: Any) -> None:
    """It counts as failed."""
    put(4)
    action = asked(store, canary=1, canary_wait=1.0, canary_max_failed=99.0)
    delivered(app, action)
    BulkAction.objects.update(canary_sent_at=Now() - timedelta(seconds=2))
    carried_out(app, action)
    assert action.state == "stopped"
    assert "had not finished after 1 s" in action.note


def test_letters_that_another_redrive_holds(app: Celery, store: DeadLetterStore, put: Any) -> None:
    """They are waited for in the broker, come last, and are left alone in the end."""
    mine = put(3)
    store.begin_redrive(mine[:1], token="t", by="ann", why="", lease=600)
    action = asked(store)
    assert delivered(app, action) == bulk_work._HELD_LOOK
    assert (action.state, action.done) == ("working", 2)
    assert delivered(app, action) == bulk_work._HELD_LOOK
    BulkAction.objects.update(held_since=Now() - 2 * bulk_work._HELD_FOR)
    carried_out(app, action)
    assert (action.state, action.done, action.left) == ("done", 2, 1)


@in_memory
def test_a_broker_that_is_away(app: Celery, store: DeadLetterStore, put: Any) -> None:
    """It fails like any task, says so on its page, and no letter is given up for it."""
    put(3)
    action = asked(store)

    def away(self: Any, message: Any) -> None:
        raise outlet.PublishError("OSError: away", True)

    publish = outlet.Outlet.publish
    outlet.Outlet.publish = away  # type: ignore[method-assign]
    try:
        with pytest.raises(StoreUnavailableError, match="The broker failed 3 times"):
            delivered(app, action, "m1")
    finally:
        outlet.Outlet.publish = publish  # type: ignore[method-assign]
    action.refresh_from_db()
    assert "because the broker did not answer" in action.note
    assert action.failed == 0
    delivered(app, action, "m1")
    assert (action.state, action.done, action.note) == ("done", 3, "")


@in_memory
def test_a_message_that_was_lost(app: Celery, store: DeadLetterStore, put: Any) -> None:
    """Its hold lapses, and then any message goes on."""
    put(1)
    action = asked(store)
    assert bulk.take(action.pk, task_id="dead")
    assert delivered(app, action) is None
    assert action.state == "waiting"
    BulkAction.objects.update(held_until=Now() - bulk.HOLD)
    carried_out(app, action)
    assert action.done == 1


@in_memory
def test_long_ago_is_forgotten(app: Celery, store: DeadLetterStore, put: Any) -> None:
    """The letters of an action after a month, the action after a year."""
    put(1)
    old = carried_out(app, asked(store))
    BulkAction.objects.update(ended_at=Now() - timedelta(days=31))
    put(1)
    carried_out(app, asked(store))
    assert not BulkActionLetter.objects.filter(action=old).exists()
    assert BulkAction.objects.count() == 2
    BulkAction.objects.filter(pk=old.pk).update(ended_at=Now() - timedelta(days=366))
    bulk.prune()
    assert BulkAction.objects.count() == 1


@in_memory
def test_statements_of_a_batch(app: Celery, store: DeadLetterStore, put: Any) -> None:
    """A hundred letters cost no more statements than one."""

    def cost(number: int) -> int:
        put(number)
        action = asked(store)
        with statements("default") as seen:
            carried_out(app, action)
        return len(seen)

    assert cost(90) == cost(1)
    assert connections["default"].vendor == "sqlite"
