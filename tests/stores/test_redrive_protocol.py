"""The redrive protocol of every store: one winner for each letter, whatever is killed and in which order."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import pytest

from celery_hardened.dead_letter.contract import DeadLetterStore, Query
from tests.stores.conftest import MakeStore
from tests.stores.letters import ROOMY, letter
from tests.support.until import until

LONG = 3600.0
LAPSED = 1e-6
"""A lease that is over as soon as it is given."""


def begin(store: DeadLetterStore, *ids: str, token: str, lease: float = LONG) -> list[str]:
    taken = store.begin_redrive(ids, token=token, by="ann", why="fixed", lease=lease)
    return [stored.letter.id for stored in taken]


@pytest.fixture
def dead(store: DeadLetterStore) -> str:
    """Id of a letter in the store."""
    written = letter()
    store.put(written)
    return written.id


def test_begin_answers_the_letter_and_takes_it(store: DeadLetterStore, dead: str) -> None:
    """Its state is ``redriving``, it is leased, still open, and the audit says who and why."""
    (taken,) = store.begin_redrive([dead], token="a", by="ann", why="fixed", lease=LONG)

    assert taken == store.get(dead)
    assert (taken.state, taken.leased) == ("redriving", True)
    assert [(entry.action, entry.by, entry.why) for entry in taken.audit] == [("redrive", "ann", "fixed")]
    assert store.count(Query()) == 1


def test_a_lease_keeps_others_out_until_it_lapses(store: DeadLetterStore, dead: str) -> None:
    """Another token gets nothing under the lease, and the letter after it."""
    begin(store, dead, token="a")
    assert begin(store, dead, token="b") == []

    store.put(brief := letter())
    begin(store, brief.id, token="a", lease=0.2)
    until(lambda: begin(store, brief.id, token="b") == [brief.id], what="the lease to lapse")


def test_begin_repeated_gives_the_same(store: DeadLetterStore, dead: str) -> None:
    """An answer that was lost on the way does not lock the caller out of its own letters."""
    begin(store, dead, token="a")
    assert begin(store, dead, token="a") == [dead]
    assert len(store.get(dead).audit) == 1


def test_only_open_letters_are_taken(store: DeadLetterStore) -> None:
    """Unknown, redriven, resolved and discarded ones are left out; order is that of the call."""
    ids = {state: letter().id for state in ("dead", "parked", "redriven", "resolved", "discarded")}
    for state, one in ids.items():
        store.put(letter(one, parked=state == "parked"))
    begin(store, ids["redriven"], token="x")
    store.finish_redrive([ids["redriven"]], token="x")
    store.resolve(ids["resolved"], by="w1", why="")
    store.discard(ids["discarded"], by="ann", why="")

    assert begin(store, "nobody", *reversed(ids.values()), token="a") == [ids["parked"], ids["dead"]]


def test_finish_closes_what_is_still_held(store: DeadLetterStore, dead: str) -> None:
    """Another token finishes nothing; the right one closes, and says the same when it is repeated."""
    begin(store, dead, token="a")
    assert store.finish_redrive([dead], token="b") == 0
    assert store.get(dead).state == "redriving"

    assert store.finish_redrive([dead], token="a") == 1
    assert store.finish_redrive([dead], token="a") == 1

    assert store.get(dead).state == "redriven"
    assert store.count(Query()) == 0


def test_a_lost_lease_finishes_and_cancels_nothing(store: DeadLetterStore, dead: str) -> None:
    """Who stalled beyond the lease must not undo what the successor did."""
    begin(store, dead, token="a", lease=LAPSED)
    begin(store, dead, token="b")

    assert store.finish_redrive([dead], token="a") == 0
    assert store.cancel_redrive([dead], token="a", why="") == 0
    assert store.get(dead).state == "redriving"
    assert store.finish_redrive([dead], token="b") == 1


@pytest.mark.parametrize("parked", [False, True])
def test_cancel_gives_back(store: DeadLetterStore, parked: bool) -> None:
    """The letter is ``dead`` or ``parked`` as before, and can be taken at once."""
    written = letter(parked=parked, group_id="g")
    store.put(written)
    begin(store, written.id, token="a")

    assert store.cancel_redrive([written.id], token="a", why="broker down") == 1

    assert store.get(written.id).state == ("parked" if parked else "dead")
    assert store.get(written.id).audit[-1].why == "broker down"
    assert begin(store, written.id, token="b") == [written.id]


# --- who may run ---------------------------------------------------------------------------------


def test_the_first_message_to_start_wins_and_its_redeliveries_too(store: DeadLetterStore, dead: str) -> None:
    """One token for ever; the letter is ``redriven`` though nobody said it was sent."""
    begin(store, dead, token="a", lease=LAPSED)
    begin(store, dead, token="b")

    assert store.accept_start(dead, token="a")
    assert store.get(dead).state == "redriven"

    assert not store.accept_start(dead, token="b")
    assert store.accept_start(dead, token="a")
    assert begin(store, dead, token="c") == []
    assert store.finish_redrive([dead], token="b") == 0


def test_a_message_that_was_thought_not_sent_may_run(store: DeadLetterStore, dead: str) -> None:
    """A publish whose answer was lost is cancelled, and the message there all the same."""
    begin(store, dead, token="a")
    store.cancel_redrive([dead], token="a", why="connection lost")

    assert store.accept_start(dead, token="a")
    assert begin(store, dead, token="b") == []


def test_a_message_of_a_closed_letter_does_not_run(store: DeadLetterStore) -> None:
    """Discarded: somebody decided so. Resolved: the task has succeeded already."""
    for close in (store.discard, store.resolve):
        written = letter()
        store.put(written)
        begin(store, written.id, token="a")
        assert close(written.id, by="ann", why="")
        assert not store.accept_start(written.id, token="a")


def test_a_redelivery_after_success_may_run(store: DeadLetterStore, dead: str) -> None:
    """A worker killed between the success and the ack: the broker brings the same message again."""
    begin(store, dead, token="a")
    store.accept_start(dead, token="a")
    assert store.resolve(dead, by="w1", why="succeeded")
    assert store.accept_start(dead, token="a")
    assert not store.accept_start(dead, token="b")


def test_messages_of_a_letter_that_is_gone(store: DeadLetterStore, dead: str) -> None:
    """Nothing is known of it: its message must not be lost."""
    begin(store, dead, token="a")
    store.finish_redrive([dead], token="a")
    store.delete(dead)
    assert store.accept_start(dead, token="a")
    assert store.accept_start("never was", token="x")


@pytest.mark.parametrize("started_before", [False, True])
def test_two_messages_of_a_letter_that_is_gone(store: DeadLetterStore, dead: str, started_before: bool) -> None:
    """Retention may drop a redriven letter while two messages of it are in the queue: one runs."""
    begin(store, dead, token="a", lease=LAPSED)
    begin(store, dead, token="b")
    store.finish_redrive([dead], token="b")
    if started_before:
        assert store.accept_start(dead, token="a")
    store.delete(dead)

    assert store.accept_start(dead, token="a")
    assert not store.accept_start(dead, token="b")
    assert store.accept_start(dead, token="a")


def test_a_discarded_letter_that_is_gone_still_forbids_its_message(store: DeadLetterStore, dead: str) -> None:
    """The message of a cancelled redrive may turn up long after."""
    begin(store, dead, token="a")
    store.discard(dead, by="ann", why="")
    store.delete(dead)
    assert not store.accept_start(dead, token="a")


def test_being_redriven_keeps_a_letter_from_growing_too_old(make_store: MakeStore) -> None:
    """Age must not drop a letter between its taking and its start."""
    store = make_store(replace(ROOMY, max_age=0.3))
    kept, control = letter(), letter()
    store.put(kept)
    begin(store, kept.id, token="a")
    store.put(control)
    until(lambda: store.sweep() == 1, what="the control letter to be swept")
    assert store.get(kept.id).leased


# --- many at once --------------------------------------------------------------------------------


def test_two_redrives_at_once_share_the_letters(store: DeadLetterStore) -> None:
    """Whatever the interleaving, each letter is taken by exactly one of four threads."""
    ids = [letter().id for _ in range(120)]
    for one in ids:
        store.put(letter(one))
    taken: list[str] = []
    ready = threading.Barrier(4)

    def take(token: str) -> None:
        ready.wait()
        for start in range(0, len(ids), 10):
            taken.extend(begin(store, *ids[start : start + 10], token=f"{token}-{start}"))

    threads = [threading.Thread(target=take, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(ids)


def test_two_messages_starting_at_once_have_one_winner(store: DeadLetterStore) -> None:
    """``accept_start`` raced by four workers for forty letters."""
    ids = [letter().id for _ in range(40)]
    for one in ids:
        store.put(letter(one))
        for token in "abcd":
            begin(store, one, token=token, lease=LAPSED)
    won: list[str] = []
    ready = threading.Barrier(4)

    def start(token: str) -> None:
        ready.wait()
        won.extend(one for one in ids if store.accept_start(one, token=token))

    threads = [threading.Thread(target=start, args=(token,)) for token in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == sorted(ids)


# --- killed anywhere -----------------------------------------------------------------------------

#: A redrive does these in turn. Killed before the n-th, it has done the first n.
STEPS = ("begin", "publish", "finish")


@pytest.mark.parametrize("starts_at", range(8))
def test_a_redrive_killed_anywhere_and_resumed_runs_the_letter_once(store: DeadLetterStore, starts_at: int) -> None:
    """
    Three redrives of one letter, the first two killed before every possible step,
    and a worker that becomes free at every possible moment: one start, no loss.
    """
    for kills in itertools.product(range(len(STEPS) + 1), repeat=2):
        written = letter()
        store.put(written)
        queue: list[str] = []
        ran: list[str] = []
        moment = 0

        def tick(one: str = written.id, queue: list[str] = queue, ran: list[str] = ran) -> None:
            nonlocal moment
            moment += 1
            if moment >= starts_at:
                ran += [token for token in queue if store.accept_start(one, token=token)]
                queue.clear()

        for number, killed_before in enumerate((*kills, len(STEPS))):
            token = f"{written.id}-{number}"
            held = False
            for step in STEPS[:killed_before]:
                if step == "begin":
                    held = begin(store, written.id, token=token, lease=LAPSED) == [written.id]
                elif held and step == "publish":
                    queue.append(token)
                elif held:
                    store.finish_redrive([written.id], token=token)
                tick()
        moment = 100
        tick()

        assert len(ran) == 1, kills
        assert store.get(written.id).state == "redriven"
