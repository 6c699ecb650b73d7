"""What the lease thread does in one round: its chores, called directly, with a book that notes what it is told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from celery_hardened import StoreUnavailableError
from celery_hardened.transport import keeper as module
from celery_hardened.transport.keeper import (
    BLOCKED,
    MALFORMED_EVERY,
    MALFORMED_PAGE,
    SWEEP_BREATH,
    SWEEP_EVERY,
    SWEEP_GAP,
    SWEEP_LONGEST,
    Callbacks,
    Keeper,
)
from celery_hardened.transport.policy import RENEWALS, WEDGED_LEASES

LEASE = 30.0
AWAY = StoreUnavailableError("sweeping", "away")

Swept = tuple[int, int, list[str], bool]
NOTHING: Swept = (0, 0, [], False)
MORE: Swept = (0, 0, [], True)
Item = tuple[str, str, bytes]


class FakeScripts:
    """*pages*: what the next sweeps find; *items*: what is set aside."""

    def __init__(self, clock: SimpleNamespace) -> None:
        self._clock = clock
        self.pages: list[Swept] = []
        self.sweeps: list[float] = []
        """The least gap that each sweep asked for."""
        self.takes = 0.0
        """Seconds of one sweep."""
        self.items: list[Item] = []
        self.looks = 0

    def sweep(self, *, every: float, **_: object) -> Swept:
        self.sweeps.append(every)
        self._clock.time += self.takes
        return self.pages.pop(0) if self.pages else NOTHING

    def malformed(self, limit: int, *, but: Collection[str] = ()) -> list[Item]:
        self.looks += 1
        return [item for item in self.items if item[0] not in but][:limit]

    def forget_malformed(self, tag: str) -> None:
        self.items = [item for item in self.items if item[0] != tag]


class FakeLeases:
    """Notes its calls."""

    def __init__(self, clock: SimpleNamespace) -> None:
        self._clock = clock
        self.scripts = FakeScripts(clock)
        self.lease = LEASE
        self.renewed = clock.time
        self.held = 1
        self.malformed = False
        self.calls: list[Any] = []

    def renew(self) -> None:
        self.calls.append("renew")
        self.renewed = self._clock.time

    def give_back_of(self, consumer: str | None) -> None:
        self.calls.append(("give back", consumer))

    def flush(self) -> None:
        self.calls.append("flush")

    def send_returns(self) -> None:
        self.calls.append("send returns")

    def empty_lists(self) -> None:
        self.calls.append("empty lists")


class FakeStop:
    """The event that ends the thread, and its only pause: set after *rounds* pauses, each of which passes at once."""

    def __init__(self, clock: SimpleNamespace, rounds: int) -> None:
        self._clock = clock
        self._left = rounds

    def is_set(self) -> bool:
        return self._left <= 0

    def wait(self, seconds: float) -> bool:
        self._clock.time += seconds
        self._left -= 1
        return self._left < 0


class Kept:
    """A keeper, what it keeps, and what it told the rest of the package."""

    def __init__(self, clock: SimpleNamespace) -> None:
        self.clock = clock
        self.leases = FakeLeases(clock)
        self.consumes = True
        self.works = False
        self.stops = False
        self.buried: list[str] = []
        self.restored: list[str] = []
        self.refused: dict[str, Exception] = {}
        """What burying or restoring raises, by tag."""
        self.keeper = Keeper(
            self.leases,  # type: ignore[arg-type]
            visibility=3600.0,
            consuming=lambda: self.consumes,
            on=Callbacks(bury=self._bury, working=lambda: self.works, stopping=lambda: self.stops),
        )
        self.keeper.restore = self._restore
        self.pauses(1000)

    def pauses(self, count: int) -> None:
        """The thread is told to end in its pause after *count* others."""
        self.keeper._stop = FakeStop(self.clock, count)  # type: ignore[assignment]

    def _bury(self, tag: str, queue: str, raw: bytes) -> None:
        if tag in self.refused:
            raise self.refused[tag]
        self.buried.append(tag)

    def _restore(self, tag: str) -> None:
        if tag in self.refused:
            raise self.refused[tag]
        self.restored.append(tag)

    @property
    def calls(self) -> list[Any]:
        """Since asked last."""
        calls, self.leases.calls = self.leases.calls, []
        return calls


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(time=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now.time))
    monkeypatch.setattr(module.lease_clock, "now", lambda: now.time)
    return now


@pytest.fixture
def kept(clock: SimpleNamespace) -> Kept:
    return Kept(clock)


# --- renewing -----------------------------------------------------------------------------------------


def test_renews_at_a_third_of_the_lease(kept: Kept) -> None:
    """Not before, and again a third later."""
    for _ in range(2):
        kept.clock.time += LEASE / RENEWALS - 0.1
        kept.keeper.loop_turned()
        kept.keeper._renew()
        assert kept.calls == []
        kept.clock.time += 0.1
        kept.keeper._renew()
        assert kept.calls == ["renew"]


def test_a_wedged_worker_leaves_its_messages_to_others(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    """Its loop stood still for three leases and nothing works: no more renewals, and the log says so."""
    kept.clock.time += WEDGED_LEASES * LEASE - 0.1
    kept.keeper._renew()
    assert kept.calls == ["renew"]
    kept.clock.time += LEASE
    with caplog.at_level(logging.CRITICAL):
        kept.keeper._renew()
    assert kept.calls == []
    assert "loop has stood still for 120 s" in caplog.text

    kept.keeper.loop_turned()
    kept.keeper._renew()
    assert kept.calls == ["renew"]


def test_a_working_task_keeps_its_lease(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    """A loop that stands still because a task runs in it is no reason to stop renewing."""
    kept.works = True
    kept.clock.time += 100 * LEASE
    kept.keeper._renew()
    assert kept.calls == ["renew"]
    assert caplog.text == ""


def test_a_wedged_worker_that_holds_nothing_is_quiet(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of its is left to anybody."""
    kept.leases.held = 0
    kept.clock.time += 100 * LEASE
    kept.keeper._renew()
    assert kept.calls == []
    assert caplog.text == ""


# --- rounds -------------------------------------------------------------------------------------------

CHORES = ("_renew", "_send", "_empty_own_lists", "_sweep", "_bury", "watch")


@pytest.mark.parametrize("problem", [AWAY, ValueError("odd"), RecursionError()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("broken", CHORES)
def test_a_chore_that_fails_keeps_no_other_from_running(
    kept: Kept, broken: str, problem: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it raises: the others have their turn in the same round, it has its next one, and the log tells."""
    ran: list[str] = []

    def chore(name: str) -> Callable[[], None]:
        def run() -> None:
            ran.append(name)
            if name == broken:
                raise problem

        return run

    for name in CHORES:
        monkeypatch.setattr(kept.keeper, name, chore(name))
    kept.pauses(2)
    kept.keeper._run()
    assert ran == [*CHORES, *CHORES]
    assert len(caplog.records) == 2


def test_rounds_are_often_enough_to_renew(kept: Kept) -> None:
    """With the longest pauses, renewals of a short lease still come well before its end."""
    kept.leases.lease = 1.0
    kept.works = True
    renewals: list[float] = []
    kept.keeper.watch = lambda: renewals.append(kept.leases.renewed)
    kept.pauses(50)
    kept.keeper._run()
    gaps = [after - before for before, after in pairwise(renewals)]
    assert 0 < max(gaps) < 0.75 * kept.leases.lease


# --- giving back --------------------------------------------------------------------------------------


def test_acks_and_returns_that_were_left_over_are_sent(kept: Kept) -> None:
    """What is held, started or not, stays."""
    kept.keeper._send()
    assert kept.calls == ["flush", "send returns"]


def test_a_stop_gives_back_what_did_not_start(kept: Kept) -> None:
    """Of all consumers, before anything else is sent."""
    kept.stops = True
    kept.keeper._send()
    assert kept.calls == [("give back", None), "flush", "send returns"]


def test_own_lists_are_emptied_while_the_loop_is_held_up(kept: Kept) -> None:
    """And only then: a loop that turns takes them itself."""
    kept.clock.time += BLOCKED - 0.1
    kept.keeper._empty_own_lists()
    assert kept.calls == []
    kept.clock.time += 0.1
    kept.keeper._empty_own_lists()
    kept.keeper._empty_own_lists()
    assert kept.calls == ["empty lists", "empty lists"]
    kept.keeper.loop_turned()
    kept.keeper._empty_own_lists()
    assert kept.calls == []


# --- sweeping -----------------------------------------------------------------------------------------


def test_sweeps_only_while_it_consumes(kept: Kept) -> None:
    """A process that takes no messages leaves the sweeping to workers."""
    kept.consumes = False
    kept.keeper._sweep()
    assert kept.leases.scripts.sweeps == []
    kept.consumes = True
    kept.keeper._sweep()
    assert kept.leases.scripts.sweeps == [SWEEP_GAP]


def test_sweeps_about_once_a_second(kept: Kept) -> None:
    """However often it is asked."""
    for _ in range(100):
        kept.keeper._sweep()
        kept.clock.time += SWEEP_EVERY / 10
    assert 10 <= len(kept.leases.scripts.sweeps) <= 15


def test_sweeps_page_after_page(kept: Kept) -> None:
    """While there is more, with a pause between two; the next ones do not wait for the gap of others' sweeps."""
    kept.leases.scripts.pages = [MORE, MORE, NOTHING, MORE]
    before = kept.clock.time
    kept.keeper._sweep()
    assert kept.leases.scripts.sweeps == [SWEEP_GAP, 0.0, 0.0]
    assert kept.clock.time == pytest.approx(before + 2 * SWEEP_BREATH)


def test_a_sweep_ends_before_a_renewal_has_to_wait(kept: Kept) -> None:
    """However much more there is: the rest comes in the next round."""
    kept.leases.scripts.pages = [MORE] * 1000
    kept.leases.scripts.takes = 0.03
    before = kept.clock.time
    kept.keeper._sweep()
    assert 2 <= len(kept.leases.scripts.sweeps) <= SWEEP_LONGEST / 0.03
    assert kept.clock.time - before < SWEEP_LONGEST + 0.03 + SWEEP_BREATH
    done = len(kept.leases.scripts.sweeps)
    kept.clock.time += SWEEP_EVERY
    kept.keeper._sweep()
    assert len(kept.leases.scripts.sweeps) > done


def test_a_sweep_ends_when_the_process_does(kept: Kept) -> None:
    """Between two pages."""
    kept.leases.scripts.pages = [MORE] * 1000
    kept.pauses(1)
    kept.keeper._sweep()
    assert len(kept.leases.scripts.sweeps) == 2


def test_an_abandoned_delivery_that_cannot_go_back_holds_up_no_other(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither those of its page nor the next page."""
    kept.leases.scripts.pages = [(0, 0, ["a", "b", "c"], True), (0, 0, ["d"], False)]
    kept.refused = {"b": AWAY}
    kept.keeper._sweep()
    assert kept.restored == ["a", "c", "d"]
    assert "an abandoned delivery stays where it is" in caplog.text


# --- burying ------------------------------------------------------------------------------------------


def items(count: int) -> list[Item]:
    return [(f"t{n}", "q", b"oops") for n in range(count)]


def test_malformed_items_are_buried_at_once(kept: Kept) -> None:
    """One's own as soon as one was set aside; others' after a while."""
    kept.keeper._looked = kept.clock.time
    kept.leases.scripts.items = items(1)
    kept.keeper._bury()
    assert kept.buried == []
    kept.leases.malformed = True
    kept.keeper._bury()
    assert kept.buried == ["t0"]
    assert kept.leases.scripts.items == []

    kept.leases.scripts.items = items(2)
    kept.clock.time += MALFORMED_EVERY - 0.1
    kept.keeper._bury()
    assert kept.buried == ["t0"]
    kept.clock.time += 0.1
    kept.keeper._bury()
    assert kept.buried == ["t0", "t0", "t1"]


def test_an_item_that_cannot_be_buried_holds_up_no_other(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    """It stays set aside, and is tried again."""
    kept.leases.scripts.items = items(3)
    kept.refused = {"t1": ValueError("odd")}
    kept.keeper._bury()
    assert kept.buried == ["t0", "t2"]
    assert [item[0] for item in kept.leases.scripts.items] == ["t1"]
    assert "no dead letter for the malformed item t1" in caplog.text

    kept.refused = {}
    kept.clock.time += MALFORMED_EVERY
    kept.keeper._bury()
    assert kept.buried == ["t0", "t2", "t1"]
    assert kept.leases.scripts.items == []


def test_a_page_that_cannot_be_buried_holds_up_no_other(kept: Kept) -> None:
    """However many they are: the next look passes over them."""
    kept.leases.scripts.items = items(MALFORMED_PAGE + 1)
    kept.refused = {f"t{n}": ValueError("odd") for n in range(MALFORMED_PAGE)}
    for _ in range(2):
        kept.keeper._bury()
    assert kept.buried == [f"t{MALFORMED_PAGE}"]


def test_nothing_is_forgotten_while_no_letter_can_be_written(kept: Kept) -> None:
    """With the store of dead letters away, all items stay, and are buried when it is back."""
    kept.leases.scripts.items = items(3)
    kept.refused = {"t1": AWAY}
    with pytest.raises(StoreUnavailableError):
        kept.keeper._bury()
    assert [item[0] for item in kept.leases.scripts.items] == ["t1", "t2"]
    kept.refused = {}
    kept.clock.time += MALFORMED_EVERY
    kept.keeper._bury()
    assert kept.buried == ["t0", "t1", "t2"]


def test_a_full_page_is_followed_by_another_look(kept: Kept) -> None:
    """In the next round, not half a minute later; an incomplete page is the last."""
    kept.leases.scripts.items = items(2 * MALFORMED_PAGE + 1)
    for _ in range(10):
        kept.keeper._bury()
    assert len(kept.buried) == 2 * MALFORMED_PAGE + 1
    assert kept.leases.scripts.looks == 3


# --- the thread ---------------------------------------------------------------------------------------


class FakeThread:
    """Alive from its start on, in the process that started it."""

    made: list[FakeThread]

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.alive = False
        self.made.append(self)

    def start(self) -> None:
        self.alive = True

    def is_alive(self) -> bool:
        return self.alive


def test_a_forked_child_starts_a_thread_of_its_own(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread a process; a child has the object of its parent's thread, and no thread; none after a stop."""
    FakeThread.made = []
    monkeypatch.setattr(module, "threading", SimpleNamespace(Thread=FakeThread))
    keeper = kept.keeper
    keeper._stop = threading.Event()
    keeper.start()
    keeper.start()
    assert [one.alive for one in FakeThread.made] == [True]
    assert FakeThread.made[0].options["daemon"]

    FakeThread.made[0].alive = False  # as seen in a forked child
    keeper.start()
    keeper.start()
    assert [one.alive for one in FakeThread.made] == [False, True]

    keeper.stop()
    FakeThread.made[1].alive = False
    keeper.start()
    assert len(FakeThread.made) == 2
