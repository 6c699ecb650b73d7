"""What the one step of a beat promises, on Valkey and on Redis: record, message, window and history move together."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from celery_hardened.beat.names import Keys
from celery_hardened.beat.policy import Overlap
from celery_hardened.beat.store import BeatStore, NotLeaderError, Outgoing, Taken
from tests.stores.beat import HISTORY, OWNER, Box, line
from tests.support.until import until


@pytest.fixture
def box(each_redis_url: str, unique: str) -> Iterator[Box]:
    client = Redis.from_url(each_redis_url)
    yield Box(client, Keys(unique))
    client.close()


# --- one fire per slot --------------------------------------------------------------------------------------


def test_a_step_moves_the_record_and_sends_the_message(box: Box) -> None:
    assert box.take(box.step()) == [Taken("taken")]
    assert box.store.records() == {"s": "r1"}
    assert box.store.record("s") == "r1"
    assert box.messages() == ["t1"]
    assert box.said() == ["r1"]


def test_messages_are_consumed_in_the_order_of_their_steps(box: Box) -> None:
    steps = [box.step(f"s{n}", task_id=f"t{n}") for n in range(100)]
    assert box.take(*steps) == [Taken("taken")] * 100
    assert box.messages() == [f"t{n}" for n in range(100)]


def test_a_step_may_send_several_messages_or_none(box: Box) -> None:
    listener = box.client.pubsub()  # type: ignore[no-untyped-call]
    listener.subscribe(f"{box.queue}-topic")
    until(lambda: (listener.get_message(timeout=0.1) or {}).get("type") == "subscribe", within=10, what="to listen")
    several = (Outgoing("PUBLISH", f"{box.queue}-topic", b"c"), box.message("a"), box.message("b", f"{box.queue}-2"))
    assert box.take(box.step("x", messages=several), box.step("y", messages=())) == [Taken("taken")] * 2
    assert (box.messages(), box.messages(f"{box.queue}-2")) == (["a"], ["b"])
    until(lambda: (listener.get_message(timeout=0.1) or {}).get("data") == b"c", within=10, what="what was published")
    assert box.store.records() == {"x": "r1", "y": "r1"}
    listener.close()


def test_a_repeat_answers_the_same_and_sends_nothing_again(box: Box) -> None:
    """The answer to the first call may be lost on the way, and the client asks again."""
    steps = [box.step("x"), box.step("y", overlap="skip", task_id="t2"), box.step("z", old="gone")]
    box.windows.enter("schedule:v", task_id="runs", ttl=60)
    steps.append(box.step("v", overlap="buffer_one", task_id="t3"))
    answer = box.take(*steps)
    assert answer == [Taken("taken"), Taken("taken"), Taken("stale"), Taken("overlapped", holder="runs")]
    before = box.everything()
    assert box.take(*steps) == answer
    assert box.everything() == before


def test_a_repeat_is_told_though_the_schedule_was_paused_since(box: Box) -> None:
    """It was fired: to say that it was paused would have the slot counted as not fired."""
    step = box.step()
    box.take(step)
    box.store.pause("s", by="me", why="test", until=None)
    assert box.take(step) == [Taken("taken")]
    assert box.messages() == ["t1"]


def test_who_has_not_read_the_latest_record_changes_nothing(box: Box) -> None:
    box.take(box.step())
    before = box.everything()
    assert box.take(box.step(old="r0", new="r2")) == [Taken("stale", current="r1")]
    assert box.take(box.step(old="", new="r2", overlap="terminate_other")) == [Taken("stale", current="r1")]
    assert box.take(box.step("never", old="r0", new="r2")) == [Taken("stale", current="")]
    assert box.everything() == before


def test_steps_of_one_schedule_follow_each_other_in_one_call(box: Box) -> None:
    answer = box.take(box.step(new="r1"), box.step(old="r1", new="r2", task_id="t2"), box.step(old="r1", new="r3"))
    assert answer == [Taken("taken"), Taken("taken"), Taken("stale", current="r2")]
    assert box.messages() == ["t1", "t2"]


def test_names_and_records_may_be_any_text(box: Box) -> None:
    """Spaces, line ends, NUL, braces, and text beyond ASCII: everything is compared and returned byte for byte."""
    for name in ("", " a b\n", "nul\0", "{x}", "naïve 日本", "%d -- ]]", "\udcff"):
        record = f"record of {name}"
        assert box.take(box.step(name, new=record, overlap="skip")) == [Taken("taken")], name
        assert box.store.record(name) == record
        assert box.store.records()[name] == record
        assert box.take(box.step(name, old=record, new="r2")) == [Taken("taken")], name
        assert box.said(name) == ["r2", record]


def test_a_lone_surrogate_is_written_down_and_disturbs_nobody(box: Box) -> None:
    assert box.take(box.step("\ud800"), box.step("x")) == [Taken("taken")] * 2


def test_malformed_steps_fail_alone(box: Box) -> None:
    """What could not be told from its repeat is not sent to Redis at all; its neighbours are taken in their places."""
    answer = box.take(
        box.step("a", new=""),
        box.step("b"),
        box.step("c", overlap="skip", task_id=""),
        box.step("d", overlap="skip", other="r1"),
        box.step("e", messages=(Outgoing("RPUSH", box.queue, b""),)),  # type: ignore[arg-type]
        box.step("f", overlap="never"),  # type: ignore[arg-type]
        box.step("g", task_id="t2"),
    )
    assert [one.outcome for one in answer] == ["failed", "taken", "failed", "failed", "failed", "failed", "taken"]
    assert all(one.trouble for one in answer if one.outcome == "failed")
    assert box.messages() == ["t1", "t2"]
    assert set(box.store.records()) == {"b", "g"}


# --- who leads ----------------------------------------------------------------------------------------------


def test_who_does_not_lead_is_refused(box: Box) -> None:
    """A leader that was stopped and resumed is refused by Redis: nothing it does changes anything."""
    box.store.set_problems(OWNER, {"s": "broken"})
    box.windows.enter("schedule:s", task_id="runs", ttl=60)
    box.take(box.step(overlap="cancel_other"))
    revokes = box.store.revokes(OWNER, 10)
    for leader in ("owner-2", None, ""):
        box.lead(leader)
        before = box.everything()
        for call in (
            lambda: box.take(box.step(old="r1", new="r2")),
            lambda: box.take(),
            lambda: box.store.set_problems(OWNER, {"s": None}),
            lambda: box.store.revokes(OWNER, 10),
            lambda: box.store.revoked(OWNER, revokes),
            lambda: box.store.forget(OWNER, ["s"]),
        ):
            with pytest.raises(NotLeaderError):
                call()
        assert box.everything() == before


def test_two_leaders_race_and_each_record_is_taken_from_once(box: Box) -> None:
    """Leadership goes back and forth between two while both fire the same slots: of each (schedule, record) there is
    one message, and exactly one step was answered ``taken``."""
    slots, names = 30, [f"s{n}" for n in range(5)]
    done = threading.Event()

    def fire(owner: str) -> list[tuple[str, str]]:
        store, won = BeatStore(box.client, box.keys, history=HISTORY), []
        for slot in range(slots):
            old, left = ("" if slot == 0 else f"r{slot - 1} "), set(names)
            while left:
                known = store.records()
                steps = [
                    box.step(name, known.get(name, ""), f"r{slot} {owner}", messages=(box.message(f"{name} {slot}"),))
                    for name in sorted(left)
                    if known.get(name, "").startswith(old) and (old or name not in known)
                ]
                left &= {step.name for step in steps}
                try:
                    answers = store.take(owner, steps)
                except NotLeaderError:
                    continue
                for step, answer in zip(steps, answers, strict=True):
                    if answer.outcome == "taken":
                        won.append((step.name, str(slot)))
                    left.discard(step.name)
        return won

    def swap() -> None:
        while not done.is_set():
            for owner in ("a", "b"):
                box.lead(owner)

    with ThreadPoolExecutor(3) as pool:
        swapping = pool.submit(swap)
        beats = [pool.submit(fire, owner) for owner in ("a", "b")]
        won = [one for beat in beats for one in beat.result(timeout=120)]
        done.set()
        swapping.result(timeout=30)
    assert sorted(won) == sorted((name, str(slot)) for name in names for slot in range(slots))
    assert sorted(box.messages()) == sorted(f"{name} {slot}" for name in names for slot in range(slots))


# --- pauses -------------------------------------------------------------------------------------------------


def test_a_paused_schedule_is_held_up(box: Box) -> None:
    """Until it is resumed; the others go on, and so does what does not ask."""
    box.store.pause("s", by="me", why="test", until=None)
    before = box.everything()
    assert box.take(box.step(overlap="cancel_other")) == [Taken("paused")]
    assert box.everything() == before
    assert box.take(box.step("x"), box.step(checks_pause=False)) == [Taken("taken")] * 2
    box.store.resume("s")
    assert box.take(box.step(old="r1", new="r2")) == [Taken("taken")]


def test_a_pause_ends_by_the_servers_clock(box: Box) -> None:
    seconds = box.client.time()[0]
    box.store.pause("ended", by="me", why="test", until=seconds - 5)
    box.store.pause("lasts", by="me", why="test", until=seconds + 600)
    box.store.pause("ended too", by="me", why="test", until=-5.0)
    box.client.hset(box.keys.paused, "ended since", f"{seconds - 1}000 {{}}")  # nobody has cleared it away
    answer = box.take(*map(box.step, ("ended", "lasts", "ended too", "ended since")))
    assert [one.outcome for one in answer] == ["taken", "paused", "taken", "taken"]


def test_a_pause_that_nobody_can_read_holds_up(box: Box) -> None:
    """Written by hand, in an incident."""
    for text in ("x", "", "{}", "-5 {}"):
        box.client.hset(box.keys.paused, "s", text)
        assert box.take(box.step()) == [Taken("paused")]
        assert "s" in box.store.paused()


# --- overlaps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", ["skip", "buffer_one"])
def test_a_step_gives_way_to_a_run_that_is_not_over(box: Box, overlap: Overlap) -> None:
    assert box.take(box.step(overlap=overlap)) == [Taken("taken")]
    assert box.holder() == "t1"
    giving_way = box.step(old="r1", new="r2", task_id="t2", overlap=overlap)
    assert box.take(giving_way) == [Taken("overlapped", holder="t1")]
    assert box.messages() == ["t1"]
    assert (box.store.record("s"), box.said()) == ("r2 gave way", ["gave way", "r1"])
    assert box.windows.leave("schedule:s", task_id="t1")
    assert box.take(box.step(old="r2 gave way", new="r3", task_id="t3", overlap=overlap)) == [Taken("taken")]
    assert box.holder() == "t3"


def test_a_step_may_give_way_and_leave_its_record(box: Box) -> None:
    box.take(box.step(overlap="skip"))
    before = box.everything()
    step = box.step(old="r1", new="r2", task_id="t2", overlap="buffer_one", other="")
    for _ in range(2):
        del before[box.keys.history("s").encode()]
        assert box.take(step) == [Taken("overlapped", holder="t1")]
        now = box.everything()
        del now[box.keys.history("s").encode()]
        assert now == before
        before = box.everything()


@pytest.mark.parametrize(("overlap", "terminate"), [("cancel_other", False), ("terminate_other", True)])
def test_the_other_run_is_noted_to_be_ended(box: Box, overlap: Overlap, terminate: bool) -> None:
    """The window is the new run's, so the old one's end does not free it."""
    odd = 'x"\\ {日}'
    box.windows.enter("schedule:s", task_id=odd, ttl=60, window=60)
    assert box.take(box.step(overlap=overlap)) == [Taken("taken", holder=odd)]
    assert [(one.id, one.terminate) for one in box.store.revokes(OWNER, 10)] == [(odd, terminate)]
    assert (box.messages(), box.holder()) == (["t1"], "t1")
    assert not box.windows.leave("schedule:s", task_id=odd)
    assert box.client.hget(box.keys.window("s"), "ends") is None


def test_a_run_of_the_same_task_is_no_other(box: Box) -> None:
    """A claim that was given back, and is made again under the id of its slot."""
    box.take(box.step(overlap="skip", messages=()))
    box.take(box.step(old="r1", new="r0", messages=(), history=""))
    assert box.take(box.step(old="r0", new="r1", overlap="cancel_other")) == [Taken("taken")]
    assert box.store.revokes(OWNER, 10) == []


def test_allow_takes_no_window(box: Box) -> None:
    box.take(box.step(overlap="allow"))
    assert box.holder() is None


def test_the_window_is_one_of_deduplication(box: Box) -> None:
    """What lengthens and frees windows does so to those of overlaps, and the other way round."""
    box.take(box.step(overlap="skip", window_ttl=100))
    [held] = box.windows.held()
    assert (held.key, held.task_id) == ("schedule:s", "t1")
    assert 50 < held.left <= 100
    assert box.windows.renew("schedule:s", task_id="t1", lease=1000)
    assert box.client.pttl(box.keys.window("s")) > 500_000
    assert box.windows.enter("schedule:s", task_id="t2", ttl=60) == "t1"
    assert box.windows.leave("schedule:s", task_id="t1")
    assert box.windows.enter("schedule:s", task_id="t2", ttl=60, window=60) == "t2"
    assert box.take(box.step(old="r1", new="r2", overlap="skip", task_id="t3")) == [Taken("overlapped", holder="t2")]
    assert box.windows.free("schedule:s") == "t2"
    assert box.take(box.step(old="r2 gave way", new="r3", overlap="skip", task_id="t3")) == [Taken("taken")]
    assert box.windows.hold("schedule:s", task_id="t3", ttl=1)


def test_a_window_that_nothing_frees_ends(box: Box) -> None:
    box.take(box.step(overlap="skip", window_ttl=0.05))
    until(lambda: box.holder() is None, within=10, what="the window to end")
    assert box.take(box.step(old="r1", new="r2", overlap="skip", task_id="t2")) == [Taken("taken")]


# --- histories ----------------------------------------------------------------------------------------------


def test_a_history_is_bounded_and_newest_first(box: Box) -> None:
    for number in range(HISTORY + 3):
        old = f"r{number - 1}" if number else ""
        box.take(box.step(old=old, new=f"r{number}"))
    assert box.said() == [f"r{number}" for number in range(HISTORY + 2, 2, -1)]
    assert box.store.history("s", 2) == [{"outcome": "r7"}, {"outcome": "r6"}]
    assert box.store.history("s", 0) == []
    assert box.store.history("none", 5) == []


def test_no_history_is_kept_if_none_is_wanted(box: Box) -> None:
    BeatStore(box.client, box.keys, history=0).take(OWNER, [box.step()])
    box.take(box.step("x", history=""))
    assert box.said("s") == box.said("x") == []


def test_lines_of_a_history_that_are_none_are_passed_over(box: Box) -> None:
    box.client.lpush(box.keys.history("s"), "not JSON", "[]", line("good"), b"\xff")
    assert box.said() == ["good"]


# --- by hand ------------------------------------------------------------------------------------------------


def test_a_run_by_hand_needs_no_leader_and_moves_no_record(box: Box) -> None:
    box.take(box.step())
    box.lead(None)
    step = box.step(task_id="by hand", history=line("triggered"), overlap="skip", checks_pause=False)
    for outcome in ("taken", "done before"):  # another call does nothing more, and says so
        assert box.store.trigger(step).outcome == outcome
        assert box.messages() == ["t1", "by hand"]
        assert (box.store.record("s"), box.said()) == ("r1", ["triggered", "r1"])
        assert box.holder() == "by hand"


def test_a_call_that_the_client_repeats_answers_as_it_did(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer may be lost on the way; the client then sends the same words again."""
    once = box.store._trigger
    monkeypatch.setattr(box.store, "_trigger", lambda **words: (once(**words), once(**words))[1])
    assert box.store.trigger(box.step(task_id="by hand")) == Taken("taken")
    assert box.messages() == ["by hand"]


def test_a_run_by_hand_heeds_overlaps_and_pauses(box: Box) -> None:
    box.windows.enter("schedule:s", task_id="runs", ttl=60)
    before = box.everything()
    assert box.store.trigger(box.step(overlap="skip")) == Taken("overlapped", holder="runs")
    assert box.everything() == before
    box.store.pause("s", by="me", why="test", until=None)
    assert box.store.trigger(box.step(overlap="cancel_other")) == Taken("paused")
    assert box.store.trigger(box.step(overlap="cancel_other", checks_pause=False)) == Taken("taken", holder="runs")
    assert [one.id for one in box.store.revokes(OWNER, 10)] == ["runs"]
    assert (box.messages(), box.holder()) == (["t1"], "t1")


@pytest.mark.parametrize("overlap", ["skip", "terminate_other"])
def test_a_run_by_hand_may_be_forced_beside_another(box: Box, overlap: Overlap) -> None:
    box.windows.enter("schedule:s", task_id="runs", ttl=60)
    assert box.store.trigger(box.step(overlap=overlap), force=True) == Taken("taken")
    assert (box.messages(), box.holder()) == (["t1"], "runs")
    assert box.store.revokes(OWNER, 10) == []
    box.windows.free("schedule:s")
    assert box.store.trigger(box.step(overlap=overlap, task_id="t2"), force=True) == Taken("taken")
    assert box.holder() == "t2"


def test_a_run_by_hand_whose_queue_is_none_may_be_tried_again(box: Box) -> None:
    box.client.set(box.queue, "x")
    before = box.everything()
    failed = box.store.trigger(box.step(overlap="skip"))
    assert (failed.outcome, "WRONGTYPE" in failed.trouble) == ("failed", True)
    assert box.everything() == before
    box.client.delete(box.queue)
    assert box.store.trigger(box.step(overlap="skip")) == Taken("taken")


def test_a_run_by_hand_needs_a_task_id(box: Box) -> None:
    with pytest.raises(ValueError, match="task id"):
        box.store.trigger(box.step(task_id=""))


# --- many ---------------------------------------------------------------------------------------------------


def test_a_hundred_thousand_records_are_read(box: Box) -> None:
    """In pages; none is missing, and it takes seconds at most."""
    for first in range(0, 100_000, 5000):
        box.client.hset(box.keys.records, mapping={f"s{n}": f"r{n}" for n in range(first, first + 5000)})
    started = time.process_time()
    found = box.store.records()
    assert found == {f"s{n}": f"r{n}" for n in range(100_000)}
    assert time.process_time() - started < 10
