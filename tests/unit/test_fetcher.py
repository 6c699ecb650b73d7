"""The states of one consuming connection: what is sent when, and what becomes of it when nothing comes back."""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, OutOfMemoryError, ReadOnlyError

from celery_hardened import StoreUnavailableError
from celery_hardened.transport import fetcher as module
from celery_hardened.transport.fetcher import OVERDUE, POLL, WAIT, WAIT_ASIDE, Fetcher
from celery_hardened.transport.names import Keys


class Wire:
    """A connection to no server: what was sent, and what the test lets it answer."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.answers: deque[Any] = deque()
        self.broken = False
        self.connected = True
        self._sock: Any = None

    def send_command(self, *command: Any) -> None:
        if self.broken:
            raise RedisConnectionError("broken pipe")
        self.sent.append(command)

    def read_response(self) -> Any:
        return b"OK"

    def disconnect(self) -> None:
        self.connected = False
        self._sock = None


class FakeClient:
    def __init__(self) -> None:
        self.connection: Any = Wire()
        self.connection_pool = self
        self.released: list[Wire] = []

    def release(self, connection: Wire) -> None:
        self.released.append(connection)

    def parse_response(self, connection: Wire, command: str) -> Any:
        answer = connection.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeLeases:
    lease = 30.0

    def __init__(self) -> None:
        self.acks: list[str] = []
        self.missing: list[str] = []
        self.entered: list[str] = []
        self.left: list[str] = []
        self.malformed = False
        self.away = False

    def riding(self, limit: int) -> list[str]:
        taken, self.acks = self.acks[:limit], self.acks[limit:]
        return taken

    def unsent(self, tags: list[str]) -> None:
        self.acks = [*tags, *self.acks]

    def never_arrived(self, tags: list[str]) -> None:
        self.missing += tags

    def enter(self, member: str) -> None:
        if self.away:
            raise StoreUnavailableError("entering", "away")
        self.entered.append(member)

    def leave(self, members: list[str]) -> None:
        self.left += members


class FakeChannel:
    consumer = "c"
    tag_prefix = "h1:c:"
    connection_errors = (RedisConnectionError, OSError)
    keys = Keys("unacked", "unacked_index", "hardened")
    fair = True
    polls = True

    def __init__(self) -> None:
        self.leases = FakeLeases()
        self.queues = ["q", "r"]
        self.free = 4
        self.number = 0
        self.got: list[tuple[Any, ...]] = []
        self.loaded = 0
        self.fetch_script = SimpleNamespace(sha="sha", load=self._load)

    def _load(self, connection: Wire) -> None:
        self.loaded += 1

    def queues_in_turn(self) -> list[str]:
        return list(self.queues)

    def credit(self) -> int:
        return self.free

    def reserve_numbers(self, count: int) -> int:
        first, self.number = self.number, self.number + count
        return first

    def lists(self, queues: tuple[str, ...]) -> tuple[list[str], list[str | int]]:
        return [f"list {queue}" for queue in queues], [part for queue in queues for part in (json.dumps(queue), 1)]

    def list_name(self, queue: str, step: int) -> str:
        return f"{queue} {step}" if step else queue

    def whole(self, name: str) -> str:
        return f"list {name}"

    def own_list(self, awaited: str) -> str:
        return f"own {awaited}"

    def own_member(self, awaited: str) -> str:
        return f"member {awaited}"

    def answered(self) -> None: ...

    def received(self, items: list[tuple[str, bytes]], *, first: int, fence: int) -> None:
        self.got.append((items, first, fence))


class Case:
    """A fetcher with what surrounds it."""

    def __init__(self, queue: str = "q", step: int = 0) -> None:
        self.channel = FakeChannel()
        self.client = FakeClient()
        main = (queue, step) == ("q", 0)
        self.fetcher = Fetcher(self.channel, self.client, queue, step, main=main)  # type: ignore[arg-type]

    @property
    def wire(self) -> Wire:
        wire: Wire = self.client.connection or self.client.released[-1]
        return wire

    @property
    def leases(self) -> FakeLeases:
        return self.channel.leases

    @property
    def sent(self) -> tuple[Any, ...]:
        return self.wire.sent[-1]

    def answer(self, answer: Any) -> bool:
        """Let the server answer, and read it; ``False``: no message came."""
        self.wire.answers.append(answer)
        try:
            return self.fetcher.read()
        except Empty:
            return False

    def lose(self, error: Exception) -> None:
        with pytest.raises(RedisConnectionError):
            self.answer(error)

    @property
    def fetched(self) -> dict[str, Any]:
        """The arguments of the last fetch."""
        command = self.sent
        assert command[0] == "EVALSHA", command
        keys, args = command[3 : 3 + command[2]], command[3 + command[2] :]
        queues = args[6]
        return {
            "own list": keys[4], "lists": list(keys[5:]), "prefix": args[0], "first": args[1], "limit": args[2],
            "lease": args[3], "fair": args[4], "own": args[5], "acks": list(args[7 + 2 * queues :]),
        }  # fmt: skip


@pytest.fixture
def main() -> Case:
    """The one that fetches unasked."""
    return Case()


@pytest.fixture
def waiter() -> Case:
    """One that waits on a list of the queue ``r``."""
    return Case("r", 3)


# --- fetching ---------------------------------------------------------------------------------------


def test_fetch(main: Case) -> None:
    """One round trip: all queues, up to the credit, with the acks; numbers are reserved before it."""
    main.leases.acks = ["one", "two"]
    main.fetcher.start()
    assert main.fetcher.state == "fetching"
    assert main.fetched == {
        "own list": "own q", "lists": ["list q", "list r"], "prefix": "h1:c:", "first": 0, "limit": 4,
        "lease": 30.0, "fair": 1, "own": 0, "acks": ["one", "two"],
    }  # fmt: skip
    assert main.answer([0, 9, 2, b"x", 1, b"y"])
    assert main.channel.got == [([("r", b"x"), ("q", b"y")], 0, 9)]
    assert (main.fetcher.state, main.leases.acks, main.leases.missing) == ("idle", [], [])
    main.fetcher.start()
    assert main.fetched["first"] == 4


def test_no_credit_no_fetch(main: Case) -> None:
    """And no ack is taken along by what is not sent."""
    main.leases.acks = ["one"]
    main.channel.free = 0
    main.fetcher.start()
    assert (main.wire.sent, main.fetcher.state, main.leases.acks) == ([], "idle", ["one"])


def test_garbage_is_looked_at_soon(main: Case) -> None:
    """Somebody has to write its dead letter; the queue may hold more, so it is not waited for."""
    main.fetcher.start()
    assert not main.answer([1, 0])
    assert main.leases.malformed
    assert main.fetcher.state == "idle"


def test_an_unknown_script(main: Case) -> None:
    """The server was restarted: it is told, the acks go with the second try, and no number is used again."""
    main.leases.acks = ["one"]
    main.fetcher.start()
    assert not main.answer(NoScriptError())
    assert main.channel.loaded == 1
    assert (main.fetched["acks"], main.fetched["first"]) == (["one"], 4)
    assert main.fetcher.state == "fetching"
    assert main.leases.missing == []


# --- waiting ----------------------------------------------------------------------------------------


def test_wait(main: Case) -> None:
    """Nothing there: wait on its list; the own list is known before a message can lie in it."""
    main.fetcher.start()
    assert not main.answer([0, 0])
    assert main.sent == ("BLMOVE", "list q", "own q", "RIGHT", "LEFT", POLL)
    assert (main.fetcher.state, main.leases.entered) == ("waiting", ["member q"])


def test_wait_longer_if_all_lists_are_waited_for(main: Case) -> None:
    main.channel.polls = False
    main.fetcher.start()
    main.answer([0, 0])
    assert main.sent[-1] == WAIT


def test_no_wait_without_credit(main: Case) -> None:
    """A message that came would have to go back."""
    main.fetcher.start()
    main.channel.free = 0
    assert not main.answer([0, 0])
    assert main.fetcher.state == "idle"
    assert len(main.wire.sent) == 1


def test_a_wait_that_nobody_would_sweep_is_not_begun(main: Case) -> None:
    """The own list could not be made known: as with any lost connection, Celery connects again."""
    main.leases.away = True
    main.fetcher.start()
    with pytest.raises(RedisConnectionError):
        main.answer([0, 0])
    assert [command[0] for command in main.wire.sent] == ["EVALSHA"]


def test_what_a_wait_brought_is_fetched(main: Case) -> None:
    """The answer is a signal; the message is taken out of the own list and leased by the script."""
    main.fetcher.start()
    main.answer([0, 0])
    assert not main.answer(b"the message")
    assert (main.fetched["own"], main.fetched["own list"]) == (1, "own q")
    assert main.channel.got == []
    assert main.answer([0, 1, 1, b"the message"])
    assert main.channel.got == [([("q", b"the message")], 4, 1)]


def test_the_own_list_keeps_its_queue_when_turns_change(main: Case) -> None:
    """The queues have rotated between wait and fetch: the message is still one of its queue's."""
    main.fetcher.start()
    main.answer([0, 0])
    main.channel.queues = ["r", "q"]
    main.answer(b"the message")
    assert (main.fetched["own"], main.fetched["own list"], main.fetched["lists"]) == (2, "own q", ["list r", "list q"])


def test_nothing_came(main: Case, waiter: Case) -> None:
    """The main fetcher looks at all queues again, at the loop's next turn; another waits on."""
    main.fetcher.start()
    main.answer([0, 0])
    assert not main.answer(None)
    assert main.fetcher.state == "idle"
    waiter.fetcher.start()
    assert not waiter.answer(None)
    assert (waiter.fetcher.state, len(waiter.wire.sent)) == ("waiting", 2)
    waiter.channel.free = 0
    assert not waiter.answer(None)
    assert waiter.fetcher.state == "idle"


def test_a_waiter_fetches_its_own_list_first(waiter: Case) -> None:
    """And then from all queues, in their turn."""
    waiter.fetcher.start()
    assert waiter.sent == ("BLMOVE", "list r 3", "own r 3", "RIGHT", "LEFT", WAIT_ASIDE)
    waiter.answer(b"m")
    assert (waiter.fetched["lists"], waiter.fetched["own"]) == (["list q", "list r"], 2)
    assert waiter.fetched["own list"] == "own r 3"
    assert waiter.answer([0, 1, 2, b"m"])
    assert waiter.channel.got == [([("r", b"m")], 0, 1)]


@pytest.mark.parametrize("why", ["credit", "cancelled"])
def test_what_cannot_be_taken_goes_back(main: Case, why: str) -> None:
    """It came and there is no use for it here any more: others may have it at once."""
    main.fetcher.start()
    main.answer([0, 0])
    if why == "credit":
        main.channel.free = 0
    else:
        main.channel.queues = ["r"]
    assert not main.answer(b"m")
    assert (main.leases.left, main.fetcher.state) == (["member q"], "idle")


# --- losing the connection ----------------------------------------------------------------------------


LOSSES: list[Exception] = [RedisConnectionError("lost"), OSError("lost"), ReadOnlyError("READONLY"), OutOfMemoryError()]


@pytest.mark.parametrize("error", LOSSES, ids=lambda error: type(error).__name__)
def test_a_lost_answer(main: Case, error: Exception) -> None:
    """What it may have leased is given back, by its numbers; acks that rode along ride again."""
    main.leases.acks = ["one"]
    main.fetcher.start()
    main.leases.acks.append("two")
    with pytest.raises((RedisConnectionError, OSError)):
        main.answer(error)
    assert main.leases.missing == [f"h1:c:{n:012d}" for n in range(4)]
    assert main.leases.acks == ["one", "two"]
    assert (main.fetcher.state, main.wire.connected) == ("idle", False)


def test_a_command_that_cannot_be_sent(main: Case) -> None:
    """It is not known how much of it the server got."""
    main.leases.acks = ["one"]
    main.wire.broken = True
    with pytest.raises(RedisConnectionError):
        main.fetcher.start()
    assert main.leases.missing == [f"h1:c:{n:012d}" for n in range(4)]
    assert (main.leases.acks, main.fetcher.state) == (["one"], "idle")


def test_a_lost_wait(main: Case) -> None:
    """Leased nothing; the own list is swept."""
    main.fetcher.start()
    main.answer([0, 0])
    main.lose(RedisConnectionError("lost"))
    assert main.leases.missing == []


def test_a_fetch_that_was_answered_is_not_given_back(main: Case) -> None:
    """However the connection ends later."""
    main.fetcher.start()
    main.answer([0, 1, 1, b"x"])
    main.fetcher.reset()
    main.lose(RedisConnectionError("closed"))
    assert main.leases.missing == []


def test_an_idle_connection_that_speaks_is_closed(main: Case) -> None:
    """Nothing was asked, so it is the end of the connection."""
    with pytest.raises(RedisConnectionError, match="idle"):
        main.fetcher.read()
    assert not main.wire.connected


def test_a_replaced_connection(main: Case) -> None:
    """Its answer will not come any more."""
    main.fetcher.start()
    main.fetcher.reset()
    assert (main.fetcher.state, len(main.leases.missing)) == ("idle", 4)


# --- overdue ------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(time=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now.time))
    return now


def test_when_an_answer_is_due(main: Case, waiter: Case, clock: SimpleNamespace) -> None:
    """A wait may last its own length longer."""
    main.fetcher.start()
    assert main.fetcher.due == clock.time + OVERDUE
    main.answer([0, 0])
    assert main.fetcher.due == clock.time + OVERDUE + POLL
    waiter.fetcher.start()
    assert waiter.fetcher.due == clock.time + OVERDUE + WAIT_ASIDE


def test_an_overdue_answer(main: Case) -> None:
    """A half-open connection never becomes readable: it counts as lost, with what may have been leased."""
    main.leases.acks = ["one"]
    main.fetcher.start()
    with pytest.raises(RedisConnectionError, match="no answer"):
        main.fetcher.overdue()
    assert (main.wire.connected, len(main.leases.missing), main.fetcher.state) == (False, 4, "idle")
    assert main.leases.acks == ["one"]


def test_this_process_stood_still(main: Case) -> None:
    """The answer has been there all the time: it is read and not given up."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        main.wire._sock = ours
        main.fetcher.start()
        theirs.send(b"*")
        main.fetcher.overdue()
        assert (main.fetcher.state, main.wire.connected, main.leases.missing) == ("fetching", True, [])


# --- closing --------------------------------------------------------------------------------------------


@pytest.fixture
def connected(main: Case) -> Iterator[Case]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        main.wire._sock = ours
        yield main


def test_stop_waits_for_a_fetch(connected: Case) -> None:
    """What it leased is told, so that it can go back now and in order."""
    connected.fetcher.start()
    connected.wire.answers.append([0, 7, 2, b"x", 1, b"y"])
    assert connected.fetcher.stop() == [("r", b"x"), ("q", b"y")]
    assert (connected.fetcher.first, connected.leases.missing) == (0, [])
    assert (connected.fetcher.state, connected.wire.connected) == ("idle", False)


ENDS: dict[str, Callable[[], Any]] = {
    "lost": lambda: RedisConnectionError("lost"),
    "late": lambda: TimeoutError("late"),
    "refused": lambda: ReadOnlyError("READONLY"),
}


@pytest.mark.parametrize("end", ENDS)
def test_stop_without_an_answer(connected: Case, end: str) -> None:
    """It does not raise, and what may have been leased goes back."""
    connected.leases.acks = ["one"]
    connected.fetcher.start()
    connected.wire.answers.append(ENDS[end]())
    assert connected.fetcher.stop() == []
    assert (len(connected.leases.missing), connected.leases.acks) == (4, ["one"])


def test_stop_while_waiting_or_idle(connected: Case) -> None:
    """Nothing is waited for."""
    connected.fetcher.start()
    connected.answer([0, 0])
    assert connected.fetcher.stop() == []
    assert not connected.wire.connected
    assert Case().fetcher.stop() == []


def test_stop_of_an_unknown_script(connected: Case) -> None:
    """The acks that rode along are not forgotten."""
    connected.leases.acks = ["one"]
    connected.fetcher.start()
    connected.wire.answers.append(NoScriptError())
    assert connected.fetcher.stop() == []
    assert connected.leases.acks == ["one"]
