"""The thread that renews claims, and what a process knows about them without asking."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from celery_hardened import StoreUnavailableError
from celery_hardened.idempotency import renewal
from celery_hardened.idempotency.renewal import Held, Renewals
from celery_hardened.lease_clock import now
from tests.support.until import until

SHORT = 0.3


class FakeStore:
    """Notes what it is asked, and answers what it is told to."""

    def __init__(self) -> None:
        self.asked: list[list[tuple[str, str]]] = []
        self.gone: set[str] = set()
        self.down = False
        self.meanwhile: Callable[[], object] = lambda: None

    def renew(self, key: str, *, owner: str, lease: float) -> bool:
        return self.renew_all([(key, owner)], lease=lease)[0]

    def renew_all(self, claims: Sequence[tuple[str, str]], *, lease: float) -> list[bool]:
        self.asked.append(list(claims))
        self.meanwhile()
        if self.down:
            raise StoreUnavailableError("renewing claims", "down")
        return [key not in self.gone for key, _ in claims]

    def count(self, key: str) -> int:
        return sum((key, f"owner of {key}") in asked for asked in self.asked)


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def lost() -> list[Held]:
    return []


@pytest.fixture
def renewals(store: FakeStore, lost: list[Held]) -> Iterator[Renewals]:
    made = Renewals(lambda: store, lost=lost.append)
    yield made
    made.close()
    _had.clear()


def hold(renewals: Renewals, key: str = "k1", lease: float = SHORT, *, ago: float = 0.0) -> Held:
    """A claim that is won now, or was *ago*; a run has it until the test is over."""
    _had.append(renewals.hold(key, f"owner of {key}", lease, sent=now() - ago))
    return _had[-1]


_had: list[Held] = []


def count_rounds(renewals: Renewals, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses after each round of the thread."""
    rounds: list[float] = []
    run = renewals._round

    def counted() -> float:
        rounds.append(run())
        return rounds[-1]

    monkeypatch.setattr(renewals, "_round", counted)
    return rounds


# --- the thread ---------------------------------------------------------------------------------------------------


def test_a_claim_is_renewed_until_it_is_dropped(renewals: Renewals, store: FakeStore) -> None:
    """Again and again, and it is certain all along; after that nobody asks for it."""
    held = hold(renewals)
    until(lambda: store.count("k1") >= 5, within=30, what="five renewals")
    assert held.until > held.sent >= now() - 30
    renewals.drop(held)
    last = hold(renewals, "k2")
    before = store.count("k1")
    until(lambda: store.count("k2") >= 3, within=30, what="three renewals of another claim")
    assert store.count("k1") <= before + 1  # one may have been on its way
    assert not last.lost


def test_a_claim_that_nobody_has_is_not_renewed(renewals: Renewals, store: FakeStore) -> None:
    """A soft time limit may hit between the claim and the line that keeps it: then nobody can drop it."""
    renewals.hold("k1", "owner of k1", SHORT, sent=now())
    gc.collect()
    hold(renewals, "k2").drop()
    kept = hold(renewals, "k3")
    until(lambda: store.count("k3") >= 3, within=30, what="three renewals of another")
    assert not kept.lost
    assert store.count("k1") <= 1  # the thread may have had it in hand
    assert store.count("k2") <= 1


def test_nothing_is_renewed_once_it_is_closed(
    renewals: Renewals, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread ends, from the middle of a long sleep; a claim after that starts another one."""
    rounds = count_rounds(renewals, monkeypatch)
    hold(renewals, lease=3600)
    until(lambda: rounds, within=30, what="the thread to go to sleep")
    thread = renewals._thread
    renewals.close()
    assert thread is not None
    until(lambda: not thread.is_alive(), within=30, what="the thread to end")
    hold(renewals, "k2")
    until(lambda: store.count("k2"), within=30, what="a renewal of the later claim")
    assert store.count("k1") == 0


def test_short_tasks_are_never_renewed(renewals: Renewals, store: FakeStore) -> None:
    """Ten thousand of them cost the store nothing."""
    for number in range(10_000):
        renewals.drop(hold(renewals, f"k{number}", lease=60))
    assert store.asked == []


def test_nobody_wakes_the_thread_for_a_new_claim(renewals: Renewals, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started by the first claim, and sleeps a third of a lease, however many come and go meanwhile."""
    rounds = count_rounds(renewals, monkeypatch)
    assert renewals._thread is None
    renewals.drop(hold(renewals, lease=600))
    thread = renewals._thread
    until(lambda: rounds, within=30, what="the thread to look once")
    for _ in range(1000):
        renewals.drop(hold(renewals, lease=600))
    assert renewals._thread is thread
    assert not renewals._sooner.is_set()
    assert len(rounds) == 1
    assert 150 < rounds[0] <= 200


def test_a_shorter_lease_wakes_it(renewals: Renewals, store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not sleep through the whole of it."""
    rounds = count_rounds(renewals, monkeypatch)
    hold(renewals, "long", lease=3600)
    until(lambda: rounds, within=30, what="the thread to go to sleep")
    hold(renewals, "short")
    until(lambda: store.count("short") >= 2, within=30, what="the short one to be renewed")
    assert store.count("long") == 0
    assert not renewals._sooner.is_set(), "it would not sleep any more"


def test_what_is_due_is_renewed_together(renewals: Renewals, store: FakeStore) -> None:
    """Fifty claims that are due are one request, and one that is young is not touched."""
    renewals._thread = threading.current_thread()
    for number in range(50):
        hold(renewals, f"k{number}", lease=60, ago=30)
    hold(renewals, "young", lease=60)
    renewals._round()
    assert store.asked == [[(f"k{number}", f"owner of k{number}") for number in range(50)]]


def test_a_store_that_is_down_is_asked_again(
    renewals: Renewals, store: FakeStore, lost: list[Held], caplog: pytest.LogCaptureFixture
) -> None:
    """Sooner than usual, and for ever; nothing counts as lost meanwhile, and nothing as certain. It is a warning."""
    store.down = True
    held = hold(renewals)
    until(lambda: store.count("k1") >= 3, within=30, what="three tries")
    until(lambda: not held.certain(), within=30, what="the lease to lapse")
    store.down = False
    until(held.certain, within=30, what="the claim to be renewed")
    assert not held.lost
    assert lost == []
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_the_thread_outlives_any_error(renewals: Renewals, store: FakeStore, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the next round comes."""

    def fail() -> None:
        store.meanwhile = lambda: None
        raise ZeroDivisionError

    store.meanwhile = fail
    hold(renewals)
    until(lambda: store.count("k1") >= 3, within=30, what="further renewals")
    assert "ZeroDivisionError" in caplog.text


def test_a_thread_that_ended_is_replaced(renewals: Renewals, store: FakeStore) -> None:
    """With the next claim: one that gevent killed, or that did not come along into a fork."""
    renewals._thread = threading.Thread(target=lambda: None)
    renewals._thread.start()
    renewals._thread.join()
    hold(renewals)
    until(lambda: store.count("k1"), within=30, what="a renewal")


def test_many_threads_hold_and_drop(renewals: Renewals, store: FakeStore, lost: list[Held]) -> None:
    """Nothing is left behind, and nothing is mixed up."""
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for number in range(300):
                held = hold(renewals, f"{name}-{number}", lease=SHORT / 10, ago=SHORT / 20)
                assert held.check()
                renewals.drop(held)
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert lost == []
    assert not renewals._held


# --- what is known without asking ---------------------------------------------------------------------------------


def test_a_claim_is_certain_for_its_lease(renewals: Renewals, store: FakeStore) -> None:
    """Counted from before it was sent, because nobody knows how long the answer took. No round trip."""
    renewals._thread = threading.current_thread()  # else it may renew the last one before it is looked at
    assert hold(renewals, lease=60).certain()
    assert hold(renewals, lease=60, ago=50).check()
    assert not hold(renewals, lease=60, ago=61).certain()


def test_an_answer_that_took_long_is_certain_for_less(
    renewals: Renewals, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal counts from when it was sent too."""
    renewals._thread = threading.current_thread()
    clock = [1000.0]
    monkeypatch.setattr(renewal, "now", lambda: clock[0])
    held = renewals.hold("k1", "owner of k1", 60, sent=900.0)
    store.meanwhile = lambda: clock.append(clock.pop() + 20)
    assert held.check()
    assert (clock, held.until) == ([1020.0], 1060.0)
    held.renewed(950.0)  # an answer that was overtaken
    assert held.until == 1060.0


def test_a_claim_that_is_not_certain_is_asked_for(renewals: Renewals, store: FakeStore) -> None:
    """In the asker's thread: the renewing one may have stood still too."""
    renewals._thread = threading.current_thread()
    held = hold(renewals, lease=60, ago=61)
    assert held.check()
    assert store.count("k1") == 1
    assert held.certain()
    assert held.check()
    assert store.count("k1") == 1


def test_a_store_that_does_not_answer_a_check_raises(renewals: Renewals, store: FakeStore) -> None:
    """Not knowing is neither yes nor no."""
    renewals._thread = threading.current_thread()  # else it may renew the claim before the store is down
    held = hold(renewals, lease=60, ago=61)
    store.down = True
    with pytest.raises(StoreUnavailableError):
        held.check()
    assert not held.lost


def test_a_loss_is_told_once(renewals: Renewals, store: FakeStore, lost: list[Held]) -> None:
    """By whoever finds out first. Nobody asks again, and it is never certain again."""
    renewals._thread = threading.current_thread()
    store.gone.add("k1")
    held = hold(renewals, lease=60, ago=30)
    assert held.certain()
    renewals._round()
    assert held.lost
    assert not held.certain()
    assert not held.check()
    renewals._round()
    assert lost == [held]
    assert store.count("k1") == 1
    held.renewed(now())  # an answer that was overtaken
    assert not held.certain()


def test_a_loss_that_two_find_out_is_told_once(renewals: Renewals, store: FakeStore, lost: list[Held]) -> None:
    """A check while the thread's own renewal is under way."""
    renewals._thread = threading.current_thread()
    store.gone.add("k1")
    held = hold(renewals, lease=60, ago=61)

    def ask() -> None:
        store.meanwhile = lambda: None
        assert not held.check()

    store.meanwhile = ask
    renewals._round()
    assert lost == [held]


def test_a_check_tells_the_loss(renewals: Renewals, store: FakeStore, lost: list[Held]) -> None:
    renewals._thread = threading.current_thread()
    store.gone.add("k1")
    held = hold(renewals, lease=60, ago=61)
    assert not held.check()
    assert lost == [held]


def test_without_a_thread_a_claim_is_asked_for(
    renewals: Renewals, store: FakeStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """None can be started at the end of an interpreter, or of the machine's threads: the task goes on."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    held = hold(renewals, lease=60, ago=61)
    assert held.check()
    assert "claims of this process are not renewed: can't start new thread" in caplog.text
    monkeypatch.undo()
    hold(renewals, "k2", ago=SHORT)
    until(lambda: store.count("k2"), within=30, what="the next claim to start one")


def test_a_callback_that_fails_costs_nobody_his_lease(renewals: Renewals, store: FakeStore) -> None:
    def fail(held: Held) -> None:
        raise ZeroDivisionError

    renewals._lost = fail
    store.gone.update({"k0", "k1"})
    assert not hold(renewals, "k0", ago=SHORT).check()
    hold(renewals, "k1")
    hold(renewals, "k2")
    until(lambda: store.count("k2") >= 3, within=30, what="the other claim to be renewed")


def test_what_ends_while_it_is_asked_for_is_no_loss(renewals: Renewals, store: FakeStore, lost: list[Held]) -> None:
    """Released, and claimed by the next one, while its renewal was under way."""
    renewals._thread = threading.current_thread()
    held = hold(renewals, lease=60, ago=30)
    store.gone.add("k1")
    store.meanwhile = lambda: renewals.drop(held)
    renewals._round()
    assert lost == []


def test_the_clock_goes_on_while_the_machine_sleeps() -> None:
    """A lease does: CLOCK_MONOTONIC of Linux would stand still."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        assert renewal.now is time.monotonic
        return
    assert abs(now() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 30


# --- forks and ends of processes ---------------------------------------------------------------------------------


def test_a_forked_child_has_a_thread_of_its_own(tmp_path: os.PathLike[str]) -> None:
    """And none of its parent's claims; also if the parent's thread held the lock at the moment of the fork."""
    program = """
import os, sys, threading, time
from celery_hardened.idempotency.renewal import Renewals
from celery_hardened.lease_clock import now

class Store:
    def __init__(self): self.pid, self.asked = os.getpid(), []
    def renew_all(self, claims, *, lease):
        self.asked.append(claims)
        return [True] * len(claims)

stores = []
def make():
    stores.append(Store())
    return stores[-1]

def wait(fact):
    end = time.monotonic() + 30
    while not fact():
        if time.monotonic() > end: os._exit(3)
        time.sleep(0.01)

renewals = Renewals(make)
had = renewals.hold("parent's", "p", 0.3, sent=now())
wait(lambda: stores and stores[0].asked)
for turn in range(20):
    renewals._lock.acquire()
    child = os.fork()
    if child == 0:
        held = renewals.hold("child's", "c", 0.3, sent=now())
        wait(lambda: len(stores) == 2 and len(stores[1].asked) > 1)
        assert stores[1].pid == os.getpid()
        assert all(asked == [("child's", "c")] for asked in stores[1].asked), stores[1].asked
        renewals.drop(held)
        os._exit(0)
    renewals._lock.release()
    if os.waitpid(child, 0)[1] != 0: sys.exit(4)
seen = len(stores[0].asked)
wait(lambda: len(stores[0].asked) > seen)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_does_not_keep_a_process_alive() -> None:
    """Nor says a word at its end, in the middle of a renewal; a claim at that moment is no error."""
    program = """
import atexit, time
from celery_hardened.idempotency.renewal import Renewals
from celery_hardened.lease_clock import now

class Store:
    def renew_all(self, claims, *, lease):
        time.sleep(0.05)
        return [True] * len(claims)

renewals = Renewals(Store)
held = renewals.hold("k", "o", 0.1, sent=now())
time.sleep(0.2)
late = Renewals(Store)
atexit.register(lambda: late.hold("k", "o", 0.1, sent=now()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if "are not renewed" not in line] == []


def test_under_gevent_it_is_a_greenlet() -> None:
    """It renews while the body's greenlet waits; in a forked child, where greenlets go on, it does not."""
    program = """
from gevent import monkey; monkey.patch_all()
import os, sys, time
from celery_hardened.idempotency.renewal import Renewals
from celery_hardened.lease_clock import now

class Store:
    def __init__(self): self.pid, self.asked = os.getpid(), 0
    def renew_all(self, claims, *, lease):
        if self.pid != os.getpid(): os._exit(5)
        self.asked += 1
        return [True] * len(claims)

def wait(fact):
    end = time.monotonic() + 30
    while not fact():
        if time.monotonic() > end: os._exit(3)
        time.sleep(0.01)

store = Store()
renewals = Renewals(lambda: store)
held = renewals.hold("k", "o", 0.3, sent=now())
wait(lambda: store.asked >= 3)
child = os.fork()
if child == 0:
    own = Store()
    renewals._make_store = lambda: own
    had = renewals.hold("c", "c", 0.3, sent=now())
    wait(lambda: own.asked >= 5)
    os._exit(0)
if os.waitpid(child, 0)[1] != 0: sys.exit(4)
seen = store.asked
wait(lambda: store.asked > seen)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=150, check=False)
    # gevent itself has a word to say in a child about threads of the parent that end there.
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
