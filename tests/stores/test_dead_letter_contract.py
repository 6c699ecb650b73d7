"""What every dead letter store promises: keeping, finding, counting, closing, importing."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from celery_hardened.dead_letter.contract import Audit, DeadLetterStore, Query, StoredLetter
from celery_hardened.dead_letter.keep import keep, kept_as
from celery_hardened.dead_letter.letter import letter_id
from celery_hardened.errors import DeadLetterNotFoundError
from tests.stores.conftest import MakeStore
from tests.stores.letters import ROOMY, letter, listed, redriven

# --- keeping -------------------------------------------------------------------------------------


def test_a_letter_comes_back_as_it_was_put(store: DeadLetterStore) -> None:
    """Body bytes, headers and all other fields are what was written; the state is ``dead``."""
    written = letter(body=bytes(range(256)), headers={"a": {"b": [1, None, "ü"]}}, properties={"priority": 3})

    assert store.put(written)

    stored = store.get(written.id)
    assert stored.letter == written
    assert stored.state == "dead"
    assert stored.audit == ()
    assert not stored.leased


def test_the_same_failure_twice_is_one_letter(store: DeadLetterStore) -> None:
    """The second write changes nothing, whatever has become of the letter meanwhile."""
    written = letter()
    store.put(written)
    store.discard(written.id, by="ann", why="obsolete")

    assert not store.put(replace(written, error_message="another"))

    stored = store.get(written.id)
    assert (stored.state, stored.letter.error_message) == ("discarded", "no such invoice")
    assert store.stats().by_state == {"discarded": 1}


def test_an_unknown_id_is_an_error(store: DeadLetterStore) -> None:
    """``get`` raises; the methods that answer whether they did something say no."""
    with pytest.raises(DeadLetterNotFoundError, match="'nobody'"):
        store.get("nobody")
    assert not store.resolve("nobody", by="ann", why="")
    assert not store.discard("nobody", by="ann", why="")
    assert not store.delete("nobody")


def test_a_deleted_letter_leaves_nothing(store: DeadLetterStore) -> None:
    """It is in no list and no count, and is not counted as dropped."""
    written = letter()
    store.put(written)

    assert store.delete(written.id)

    stats = store.stats()
    assert (stats.open, stats.bytes, stats.by_task, stats.by_state, stats.dropped) == (0, 0, {}, {}, {})
    assert listed(store) == listed(store, task="shop.charge") == []


def test_odd_names_are_kept_and_found(store: DeadLetterStore) -> None:
    """Task names come from foreign messages: colons, line ends, lone surrogates, a megabyte."""
    for name in ("a:b*?", "x\ny", "\ud800", "ü" * 1_000_000):
        written = letter(task=name, queue=name)
        store.put(written)
        assert listed(store, task=name) == listed(store, queue=name) == [written.id]
        assert store.get(written.id).letter.task == name


def test_ids_out_of_foreign_messages_are_kept_and_found(store: DeadLetterStore) -> None:
    """A task id may be anything that JSON can hold; so may the letter that a message claims to come from."""
    odd = "\ud800\n:*"
    written = letter(letter_id(odd, 0, 0, ""), task_id=odd, headers={"hardened": {"redrive": [odd, odd]}})
    assert store.put(written)
    assert not store.put(written)
    assert list(store.ids(Query())) == [written.id]
    assert [stored.letter for stored in store.find(Query(ids=(written.id,))).letters] == [written]
    assert store.accept_start(odd, token=odd)
    assert store.discard(written.id, by=odd, why=odd)


def test_a_letter_that_asks_to_be_kept_for_ever_is_kept_long(store: DeadLetterStore) -> None:
    """``max_age`` comes from a task's author, who may write infinity."""
    written = letter(max_age=float("inf"))
    assert store.put(written)
    assert store.sweep() == 0
    assert listed(store) == [written.id]


def test_a_task_id_that_is_published_again_fails_under_an_id_of_its_own(store: DeadLetterStore) -> None:
    """
    A user's own ``task_id="sync-42"``, or a task that ``replace()`` put in another's place: the second
    message's failure is no repetition of the first's, whatever became of that. A redelivery still is one.
    """
    first = letter("sync-42-0-0", task_id="sync-42", first_published=1.0)
    second = replace(first, first_published=2.0, body=b'[["i2"], {}, {}]')
    plain = replace(first, first_published=None, body=b'[["i3"], {}, {}]')  # from a producer that stamps nothing

    assert keep(store, first) == ("sync-42-0-0", True)
    assert keep(store, first) == ("sync-42-0-0", False)
    assert store.discard(first.id, by="me", why="")
    for another in (second, plain):
        kept, new = keep(store, another)
        assert new
        assert kept == kept_as(store, first.id, another.first_published, another.body) != first.id
        assert keep(store, another) == (kept, False)
        assert store.get(kept).letter.body == another.body
    assert kept_as(store, first.id, first.first_published, first.body) == first.id
    assert len(listed(store)) == 2


# --- finding -------------------------------------------------------------------------------------


def test_each_field_of_a_query_selects(store: DeadLetterStore) -> None:
    """Task, queue, reason, fingerprint, error class and state, alone and together."""
    plain = letter()
    others = {
        "task": letter(task="shop.ship"),
        "queue": letter(queue="slow"),
        "reason": letter(reason="poison"),
        "fingerprint": letter(fingerprint="beef"),
        "error_type": letter(error_type="builtins.KeyError"),
    }
    parked = letter(parked=True, group_id="g")
    for one in (plain, parked, *others.values()):
        store.put(one)

    for name, other in others.items():
        assert listed(store, **{name: getattr(other, name)}) == [other.id], name
        assert other.id not in listed(store, **{name: getattr(plain, name)}), name
        assert store.count(Query(**{name: getattr(plain, name)})) == 6, name
    assert listed(store, state="parked") == [parked.id]
    assert listed(store, task="shop.charge", queue="slow") == [others["queue"].id]
    assert listed(store, task="shop.ship", queue="slow") == []
    assert store.count(Query(task="shop.charge", queue="billing", state="dead", reason="permanent")) == 3


def test_what_a_letter_lacks_is_found_by_an_empty_word(store: DeadLetterStore) -> None:
    """``Query(task="")`` are the letters of messages without a task."""
    nameless = letter(task=None, reason="malformed")
    store.put(letter())
    store.put(nameless)

    assert listed(store, task="") == [nameless.id]


def test_times_bound_a_query_on_both_sides_inclusive(store: DeadLetterStore) -> None:
    """``since`` and ``until`` compare with the moment the store wrote the letter."""
    ids = []
    for _ in range(5):
        written = letter()
        store.put(written)
        ids.append(written.id)
    times = [store.get(one).stored_at for one in ids]
    assert times == sorted(set(times))

    assert list(store.ids(Query(since=times[1], until=times[3]))) == ids[1:4]
    assert store.count(Query(since=times[1], until=times[3])) == 3
    assert store.count(Query(since=times[1], task="shop.charge", queue="billing")) == 4
    assert listed(store, until=times[1]) == [ids[1], ids[0]]


def test_pages_hold_every_letter_once_newest_first(store: DeadLetterStore) -> None:
    """Walking the cursors gives all that match, in order, and then ``None``."""
    ids = []
    for number in range(25):
        written = letter(queue="billing" if number % 2 else "slow")
        store.put(written)
        ids.append(written.id)

    for query, expected in ((Query(), ids[::-1]), (Query(queue="slow", task="shop.charge"), ids[::-1][::2])):
        seen, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            page = store.find(query, limit=5, cursor=cursor)
            assert len(page.letters) == 5 or page.cursor is None
            seen += [stored.letter.id for stored in page.letters]
            cursor, pages = page.cursor, pages + 1
        assert seen == expected
        assert pages == -(-len(expected) // 5)


def test_letters_that_came_between_two_pages_do_not_shift_them(store: DeadLetterStore) -> None:
    """A cursor names a place in time, not a number of letters."""
    old = [letter() for _ in range(4)]
    for one in old:
        store.put(one)
    first = store.find(Query(), limit=2)
    store.put(letter())
    store.delete(old[2].id)

    second = store.find(Query(), limit=2, cursor=first.cursor)

    assert [one.letter.id for one in second.letters] == [old[1].id, old[0].id]
    assert second.cursor is None


def test_ids_are_a_query_too(store: DeadLetterStore) -> None:
    """Named letters are filtered and ordered like others; unknown and closed ones are left out."""
    one, two, closed = letter(), letter(queue="slow"), letter()
    for each in (one, two, closed):
        store.put(each)
    store.discard(closed.id, by="ann", why="")
    query = Query(ids=(two.id, closed.id, "nobody", one.id))

    assert [stored.letter.id for stored in store.find(query).letters] == [two.id, one.id]
    assert list(store.ids(query)) == [one.id, two.id]
    assert store.count(query) == 2
    assert list(store.ids(replace(query, queue="slow"))) == [two.id]
    page = store.find(query, limit=1)
    assert [each.letter.id for each in store.find(query, limit=1, cursor=page.cursor).letters] == [one.id]


def test_ids_go_on_while_letters_are_closed_under_them(store: DeadLetterStore) -> None:
    """A redrive walks what it changes: no id is left out, none comes twice."""
    ids = [letter().id for _ in range(7)]
    for one in ids:
        store.put(letter(one))

    seen = []
    for one in store.ids(Query(task="shop.charge")):
        seen.append(one)
        store.discard(one, by="ann", why="")

    assert seen == ids


def test_a_group_is_found_by_the_name_it_is_counted_under(store: DeadLetterStore) -> None:
    """Also one whose name is so long that it is cut, and what its whole name asks for is the same."""
    mine = letter(task="shop." + "x" * 300)
    store.put(mine)
    store.put(letter(task="shop." + "x" * 299))
    assert listed(store, task=mine.task) == [mine.id]
    assert [len(listed(store, task=one)) for one in store.stats().by_task] == [1, 1]


def test_stats_count_what_is_open(store: DeadLetterStore) -> None:
    """Groups, states, oldest and newest follow every change."""
    first, second, third = letter(), letter(task="shop.ship", reason="poison"), letter()
    for one in (first, second, third):
        store.put(one)
    store.resolve(third.id, by="w1", why="")

    stats = store.stats()
    assert stats.open == 2
    assert stats.by_task == {"shop.charge": 1, "shop.ship": 1}
    assert stats.by_reason == {"permanent": 1, "poison": 1}
    assert stats.by_queue == {"billing": 2}
    assert stats.by_queue_and_reason == {("billing", "permanent"): 1, ("billing", "poison"): 1}
    assert stats.by_fingerprint == {"f00d": 2}
    assert stats.by_error_type == {"builtins.ValueError": 2}
    assert stats.by_state == {"dead": 2, "resolved": 1}
    assert stats.oldest == store.get(first.id).stored_at
    assert stats.newest == store.get(second.id).stored_at
    assert stats.bytes > 3 * 1000


def test_empty_stats(store: DeadLetterStore) -> None:
    """A store nobody wrote to."""
    stats = store.stats()
    assert (stats.open, stats.bytes, stats.oldest, stats.newest) == (0, 0, None, None)
    assert store.find(Query()).letters == ()
    assert store.count(Query(task="x", queue="y")) == 0


# --- closing -------------------------------------------------------------------------------------


def test_closed_letters_leave_the_open_lists_and_are_found_by_state(store: DeadLetterStore) -> None:
    """Closed letters are a record, with all their filters, for those who ask for the state."""
    kept, gone, done = letter(), letter(task="shop.ship"), letter(queue="slow")
    for one in (kept, gone, done):
        store.put(one)

    assert store.discard(gone.id, by="ann", why="obsolete")
    assert store.resolve(done.id, by="w1", why="it ran after all")

    assert listed(store) == [kept.id]
    assert listed(store, task="shop.ship") == []
    assert listed(store, state="discarded", task="shop.ship") == [gone.id]
    assert listed(store, state="resolved", queue="slow", task="shop.charge") == [done.id]
    assert listed(store, state="resolved", queue="billing") == []
    assert [(entry.action, entry.by, entry.why) for entry in store.get(gone.id).audit] == [
        ("discarded", "ann", "obsolete")
    ]


def test_a_letter_is_closed_once(store: DeadLetterStore) -> None:
    """Only open letters can be discarded; only what is not resolved or discarded can be resolved."""
    one, two, sent = letter(), letter(), letter()
    for each in (one, two, sent):
        store.put(each)
    assert store.discard(one.id, by="ann", why="")
    assert store.resolve(two.id, by="ann", why="")

    for each in (one, two):
        assert not store.discard(each.id, by="bob", why="")
        assert not store.resolve(each.id, by="bob", why="")
        assert [entry.by for entry in store.get(each.id).audit] == ["ann"]

    store.begin_redrive([sent.id], token="t", by="ann", why="", lease=60)
    store.finish_redrive([sent.id], token="t")
    assert not store.discard(sent.id, by="bob", why="")
    assert store.resolve(sent.id, by="w1", why="")


def test_the_audit_is_bounded(store: DeadLetterStore) -> None:
    """Of a letter that is taken and given back for ever, the last fifty steps are kept."""
    written = letter()
    store.put(written)
    for number in range(40):
        store.begin_redrive([written.id], token=f"t{number}", by="ann", why=str(number), lease=60)
        store.cancel_redrive([written.id], token=f"t{number}", why="no")

    audit = store.get(written.id).audit
    assert len(audit) == 50
    assert (audit[-1].action, audit[-2].why) == ("cancel", "39")
    assert audit[-1].by == "ann"


def test_parked_groups_are_those_whose_chord_waits(store: DeadLetterStore) -> None:
    """Parked, or parked before their redrive began; not the closed ones."""
    waiting, taken, closed = (letter(parked=True, group_id=f"g{number}") for number in range(3))
    for one in (waiting, taken, closed, letter(group_id="not parked")):
        store.put(one)
    store.begin_redrive([taken.id], token="t", by="ann", why="", lease=60)
    store.discard(closed.id, by="ann", why="")

    assert sorted(store.parked_groups()) == sorted([(waiting.id, "g0"), (taken.id, "g1")])


# --- import --------------------------------------------------------------------------------------


def test_an_import_brings_state_time_and_audit(store: DeadLetterStore) -> None:
    """What was exported is as it was, but a redrive under way belongs to the other store."""
    audit = tuple(Audit(float(number), "discarded", "ann", "obsolete") for number in range(50))
    dead = StoredLetter(letter=letter(), state="dead", stored_at=1_700_000_000.123456)
    discarded = StoredLetter(letter=letter(), state="discarded", stored_at=1_700_000_001.0, audit=audit)
    redriving = StoredLetter(letter=letter(parked=True), state="redriving", stored_at=1_700_000_002.0)

    assert store.put_many([dead, discarded, redriving]) == 3
    assert store.put_many([dead]) == 0

    assert store.get(dead.letter.id) == dead
    assert store.get(discarded.letter.id) == discarded
    assert store.get(redriving.letter.id).state == "parked"
    assert listed(store, until=1_700_000_000.123456) == [dead.letter.id]


def test_letters_imported_with_one_time_are_still_paged_apart(store: DeadLetterStore) -> None:
    """No two letters share their moment, or a page would end between them and lose the rest."""
    imported = [StoredLetter(letter=letter(), state="dead", stored_at=1_700_000_000.0) for _ in range(30)]
    store.put_many(imported)

    seen, cursor = [], None
    while True:
        page = store.find(Query(), limit=7, cursor=cursor)
        seen += [stored.letter.id for stored in page.letters]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(seen) == sorted(stored.letter.id for stored in imported)


def test_an_imported_letter_is_kept_for_its_full_age(make_store: MakeStore) -> None:
    """It may be older than the retention allows; whoever imports it wants to work with it."""
    store = make_store(ROOMY)
    old = StoredLetter(letter=letter(), state="dead", stored_at=1_500_000_000.0)
    store.put_many([old])
    assert store.sweep() == 0
    assert listed(store) == [old.letter.id]


# --- one winner ----------------------------------------------------------------------------------


def test_many_threads_writing_one_letter_make_one(store: DeadLetterStore) -> None:
    """Exactly one ``put`` says that it was new."""
    written = letter()
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(store.put(written))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [False] * 7 + [True]


def test_a_letter_names_the_one_its_redrive_ended_in(store: DeadLetterStore) -> None:
    """The message carries where it came from, so the old letter learns of the new one."""
    before = letter()
    store.put(before)
    store.begin_redrive([before.id], token="t", by="ann", why="", lease=60)
    store.finish_redrive([before.id], token="t")
    after = redriven(before)

    store.put(after)

    assert store.get(before.id).successor == after.id
    assert store.get(before.id).audit[-1].why == after.id
    assert store.get(after.id).successor is None
