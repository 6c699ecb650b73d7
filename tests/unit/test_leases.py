"""What a process holds: the book, with scripts that only note what they are told."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from celery_hardened import StoreUnavailableError
from celery_hardened.transport import leases as module
from celery_hardened.transport.leases import Lease, Leases

AWAY = StoreUnavailableError("writing", "away")


class FakeScripts:
    """Notes its calls. ``gone``: tags whose lease ran out; ``away``: nothing answers."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.gone: set[str] = set()
        self.away = False
        self.before: Callable[[], None] = lambda: None

    def _note(self, *call: Any) -> None:
        before, self.before = self.before, lambda: None
        before()
        if self.away:
            raise AWAY
        self.calls.append(call)

    def renew(self, tags: Sequence[str], *, lists: Sequence[str], lease: float) -> list[str]:
        self._note("renew", list(tags), list(lists), lease)
        return [tag for tag in tags if tag in self.gone]

    def end(self, tags: Sequence[str]) -> None:
        self._note("end", list(tags))

    def give_back(self, tags: Sequence[str], *, started: bool, last: bool) -> int:
        self._note("give back", list(tags), *(["started"] if started else []), *(["last"] if last else []))
        return len(tags)

    def release(self, lists: Sequence[str]) -> int:
        self._note("release", list(lists))
        return 0

    def delay(self, waits: Sequence[tuple[str, str, float]]) -> int:
        self._note("delay", list(waits))
        return len(waits)

    def set_aside(self, tag: str, queue: str, raw: bytes) -> None:
        self._note("aside", tag, queue, raw)


class Book:
    """Leases, and who was told of what."""

    def __init__(self) -> None:
        self.scripts = FakeScripts()
        self.lost: list[str] = []
        self.on_loss: Callable[[], object] = lambda: None
        self.wanted = 0
        self.leases = Leases(
            self.scripts,  # type: ignore[arg-type]
            lease=30.0,
            lost=self._lost,
            wanted=self._wanted,
        )

    def _lost(self, lease: Lease) -> None:
        self.lost.append(lease.tag)
        self.on_loss()

    def _wanted(self) -> None:
        self.wanted += 1

    def take(self, *tags: str, consumer: str = "c") -> None:
        self.leases.take(Lease(tag, "q", consumer, number) for number, tag in enumerate(tags))

    @property
    def calls(self) -> list[tuple[Any, ...]]:
        """Since asked last."""
        calls, self.scripts.calls = self.scripts.calls, []
        return calls


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(time=1000.0)
    monkeypatch.setattr(module.lease_clock, "now", lambda: now.time)
    return now


# --- start ------------------------------------------------------------------------------------------


def test_what_is_held_may_start(book: Book) -> None:
    """Without asking Redis; and somebody keeps the leases from the first one on."""
    book.take("a")
    assert book.wanted
    assert book.leases.start("a")
    assert not book.leases.start("unknown")
    assert book.calls == []


@pytest.mark.parametrize("end", ["ack", "give back", "channel", "lost", "delay", "aside"])
def test_what_is_not_held_any_more_may_not_start(book: Book, end: str) -> None:
    """Whatever ended it, a start here would be a second one."""
    book.take("a")
    book.scripts.gone = {"a"}
    {
        "ack": lambda: book.leases.ack("a", ride=True),
        "give back": lambda: book.leases.give_back(["a"]),
        "channel": lambda: book.leases.give_back_of("c"),
        "lost": lambda: book.leases.renew(),
        "delay": lambda: book.leases.delay([("a", "d", 5.0)]),
        "aside": lambda: book.leases.set_aside("a", "q", b""),
    }[end]()
    assert not book.leases.start("a")
    assert not book.leases.holds("a")


def test_a_process_that_stood_still_asks_first(clock: SimpleNamespace) -> None:
    """Longer than a lease: its messages may have been put back, and it does not know."""
    book = Book()
    book.take("a", "b")
    book.scripts.gone = {"a"}
    clock.time += 31
    assert not book.leases.start("a")
    assert book.leases.start("b")
    assert [call[:2] for call in book.calls] == [("renew", ["a"]), ("renew", ["b"])]
    assert book.lost == [], "it had not started"


def test_a_process_that_cannot_ask_does_not_start(clock: SimpleNamespace) -> None:
    """It goes back when Redis answers again, unmarked."""
    book = Book()
    book.take("a")
    clock.time += 31
    book.scripts.away = True
    assert not book.leases.start("a")
    book.scripts.away = False
    book.leases.send_returns()
    assert book.calls == [("give back", ["a"])]


# --- acks -----------------------------------------------------------------------------------------------


def test_an_ack_goes_at_once(book: Book) -> None:
    """Unless the next fetch takes it along."""
    book.take("a", "b")
    book.leases.ack("a", ride=False)
    assert book.calls == [("end", ["a"])]
    book.leases.ack("b", ride=True)
    assert book.calls == []
    assert book.leases.unsent_acks == 1
    assert book.leases.riding(10) == ["b"]
    assert book.leases.unsent_acks == 0


def test_an_ack_of_what_is_lost_touches_nothing(book: Book) -> None:
    """Its entry is another's, or gone."""
    book.leases.ack("a", ride=False)
    book.leases.ack("a", ride=True)
    assert (book.calls, book.leases.unsent_acks) == ([], 0)


def test_acks_once(book: Book) -> None:
    book.take("a")
    for _ in range(2):
        book.leases.ack("a", ride=False)
    assert book.calls == [("end", ["a"])]


def test_acks_that_failed_are_sent_again(book: Book) -> None:
    """By hand or by fetch, in their order; until then their leases are renewed, or others would run them."""
    book.take("a", "b", "c")
    book.scripts.away = True
    book.leases.ack("a", ride=False)
    book.leases.ack("b", ride=True)
    assert book.leases.riding(1) == ["a"]
    book.leases.unsent(["a"])
    book.scripts.away = False
    book.leases.renew()
    assert book.calls == [("renew", ["c", "a", "b"], [], 30.0)]
    book.leases.flush()
    assert book.calls == [("end", ["a", "b"])]
    book.leases.flush()
    assert book.calls == []


def test_acks_of_many_threads(book: Book) -> None:
    """None is sent twice, none is forgotten: the threads pool acks from its threads, while fetches take acks along."""
    tags = [f"t{n}" for n in range(2000)]
    book.take(*tags)
    sent: list[str] = []
    parts = [tags[n::4] for n in range(4)]

    def ack(part: list[str]) -> None:
        for number, tag in enumerate(part):
            book.leases.ack(tag, ride=number % 3 > 0)

    def ride() -> None:
        for _ in range(500):
            sent.extend(book.leases.riding(3))

    threads = [threading.Thread(target=ack, args=(part,)) for part in parts]
    threads += [threading.Thread(target=ride) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    book.leases.flush()
    for call in book.calls:
        sent += call[1]
    assert sorted(sent) == sorted(tags)


# --- giving back ------------------------------------------------------------------------------------------


def test_give_back(book: Book) -> None:
    """In the order given, started ones marked, and what is not held not at all."""
    book.take("a", "b", "c")
    book.leases.start("b")
    book.leases.give_back(["a", "b", "c", "x"], last=True)
    assert book.calls == [("give back", ["b"], "started", "last"), ("give back", ["a", "c"], "last")]
    book.leases.give_back(["a", "b", "c"])
    assert book.calls == []


def test_a_channel_closes(book: Book) -> None:
    """What it brought and nobody started goes back, in order. What runs, or came by another, stays."""
    book.take("a", "b", "c")
    book.take("x", consumer="other")
    book.leases.start("b")
    assert book.leases.give_back_of("c") == 2
    assert book.calls == [("give back", ["a", "c"])]
    assert [tag for tag in "abcx" if book.leases.holds(tag)] == ["b", "x"]
    book.leases.ack("b", ride=False)
    assert book.calls == [("end", ["b"])]


def test_returns_that_failed_are_sent_again(book: Book) -> None:
    """In their order, each once, and the thread is asked to."""
    book.take("a", "b")
    book.scripts.away = True
    wanted = book.wanted
    book.leases.give_back(["a"])
    book.leases.give_back(["b"], last=True)
    assert book.wanted > wanted
    book.scripts.away = False
    book.leases.send_returns()
    book.leases.send_returns()
    assert book.calls == [("give back", ["a"]), ("give back", ["b"], "last")]


def test_returns_of_two_threads(book: Book) -> None:
    """While one is being sent another thread sends the next: none is skipped, none sent twice."""
    book.take("a", "b")

    def other() -> None:
        thread = threading.Thread(target=book.leases.give_back, args=(["b"],))
        thread.start()
        thread.join(60)
        assert not thread.is_alive()

    book.scripts.before = other
    book.leases.give_back(["a"])
    assert sorted(book.calls) == [("give back", ["a"]), ("give back", ["b"])]


def test_what_never_arrived_goes_back(book: Book) -> None:
    """Later, from the thread: the loop that found its connection lost does not wait for another one."""
    book.leases.never_arrived(["a", "b"])
    assert book.calls == []
    assert book.wanted
    book.leases.send_returns()
    assert book.calls == [("give back", ["a", "b"])]


# --- waiting in Redis, set aside ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step",
    [lambda leases: leases.delay([("a", "d", 5.0)]), lambda leases: leases.set_aside("a", "q", b"raw")],
    ids=["delay", "set aside"],
)
def test_what_could_not_be_done_is_held_still(book: Book, step: Callable[[Leases], None]) -> None:
    """So that it is renewed, and goes back with its channel."""
    book.take("a")
    book.scripts.away = True
    with pytest.raises(StoreUnavailableError):
        step(book.leases)
    assert book.leases.holds("a")
    book.scripts.away = False
    step(book.leases)
    assert not book.leases.holds("a")


# --- renewing ---------------------------------------------------------------------------------------------


def test_everything_is_renewed(clock: SimpleNamespace, book: Book) -> None:
    """Running, prefetched, acked and not yet sent; and lists. Only that counts as a renewal of all."""
    book.take("a", "b")
    book.leases.start("b")
    book.leases.enter("list")
    book.calls  # noqa: B018
    clock.time += 5
    book.leases.renew(["a"])
    assert book.leases.renewed < clock.time
    book.leases.renew()
    assert book.calls == [("renew", ["a"], ["list"], 30.0), ("renew", ["a", "b"], ["list"], 30.0)]
    assert book.leases.renewed == clock.time


def test_a_renewal_that_failed_is_none(clock: SimpleNamespace, book: Book) -> None:
    book.take("a")
    clock.time += 5
    book.scripts.away = True
    with pytest.raises(StoreUnavailableError):
        book.leases.renew()
    assert book.leases.renewed < clock.time
    assert book.leases.holds("a")


def test_all_losses_of_a_renewal_happen_at_once(book: Book) -> None:
    """While the first is told, the second may not start any more."""
    book.take("a", "b")
    book.leases.start("a")
    book.scripts.gone = {"a", "b"}
    starts: list[bool] = []
    book.on_loss = lambda: starts.append(book.leases.start("b"))
    book.leases.renew()
    assert (book.lost, starts) == (["a"], [False])


def test_a_renewal_counts_from_when_it_was_asked(book: Book, clock: SimpleNamespace) -> None:
    """A process that stands still until its answer comes does not take old leases for fresh."""
    book.take("a")
    book.scripts.before = lambda: setattr(clock, "time", clock.time + 100)
    book.leases.renew()
    book.scripts.gone = {"a"}
    assert not book.leases.start("a")


def test_a_lost_lease_is_told(book: Book) -> None:
    """Of a running one, once; an unstarted one is dropped without a word; an acked one was no loss."""
    book.take("runs", "waits", "acked", "held")
    book.leases.start("runs")
    book.leases.ack("acked", ride=True)
    book.scripts.gone = {"runs", "waits", "acked"}
    book.leases.renew()
    book.leases.renew()
    assert book.lost == ["runs"]
    assert [tag for tag in ("runs", "waits", "acked", "held") if book.leases.holds(tag)] == ["held"]
    book.calls  # noqa: B018
    book.leases.ack("runs", ride=False)
    book.leases.give_back(["runs", "waits"])
    assert book.calls == []


def test_an_ack_during_a_renewal_is_no_loss(book: Book) -> None:
    """The tag was listed, then acked and ended by a fetch, then not found."""
    book.take("a")
    book.leases.start("a")
    book.scripts.gone = {"a"}
    book.scripts.before = lambda: book.leases.ack("a", ride=True)
    book.leases.renew()
    assert book.lost == []


# --- own lists ----------------------------------------------------------------------------------------------


def test_a_list_is_known_before_it_is_used(book: Book) -> None:
    """Written once, renewed from then on; if that failed, it is not known, and asked again."""
    book.scripts.away = True
    with pytest.raises(StoreUnavailableError):
        book.leases.enter("list")
    book.scripts.away = False
    book.leases.renew()
    book.leases.enter("list")
    book.leases.enter("list")
    assert book.calls == [("renew", [], [], 30.0), ("renew", [], ["list"], 30.0)]


def test_a_list_is_left_once(book: Book) -> None:
    """Others than its own are not; and it is not renewed any more."""
    book.leases.enter("list")
    book.calls  # noqa: B018
    book.leases.leave(["list", "other"])
    book.leases.leave(["list"])
    book.leases.renew()
    assert book.calls == [("release", ["list"]), ("renew", [], [], 30.0)]


def test_a_list_that_could_not_be_left_is_left_later(book: Book) -> None:
    """And one that was entered again meanwhile is not left."""
    book.leases.enter("one")
    book.leases.enter("two")
    book.scripts.away = True
    book.leases.leave(["one", "two"])
    book.scripts.away = False
    book.leases.enter("two")
    book.calls  # noqa: B018
    book.leases.send_returns()
    book.leases.send_returns()
    assert book.calls == [("release", ["one"])]


# --- the end ------------------------------------------------------------------------------------------------


def test_close(book: Book) -> None:
    """Acks go first, what has started goes back marked, the rest in order, and lists are left. Twice is once."""
    book.take("a", "b", "c", "d")
    book.leases.start("c")
    book.leases.enter("list")
    book.leases.ack("a", ride=True)
    book.calls  # noqa: B018
    book.leases.close()
    book.leases.close()
    assert book.calls == [
        ("end", ["a"]),
        ("give back", ["c"], "started"),
        ("give back", ["b", "d"]),
        ("release", ["list"]),
    ]
    book.leases.ack("c", ride=False)
    assert book.calls == []


def test_close_without_a_server(book: Book) -> None:
    """Nothing is raised: leases run out by themselves."""
    book.take("a", "b")
    book.leases.ack("a", ride=True)
    book.scripts.away = True
    book.leases.close()


def test_a_forked_child_holds_nothing(book: Book) -> None:
    """It neither acks, gives back, renews nor closes what its parent holds; the parent holds it still."""
    book.take("a", "b")
    book.leases.enter("list")
    book.leases.ack("b", ride=True)
    book.calls  # noqa: B018
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            book.leases.close()
            started = book.leases.start("a")
            book.leases.ack("a", ride=False)
            book.leases.give_back(["a"])
            book.leases.leave(["list"])
            book.leases.close()
            os.write(write, repr((started, book.leases.held, book.calls)).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 10_000).decode() == repr((False, 0, []))
    os.close(read)
    assert book.leases.holds("a")
    assert book.leases.unsent_acks == 1
