"""What every store of claims promises, in memory, on Valkey and on Redis: one suite."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from redis import Redis

from celery_hardened.idempotency.contract import Answer, Busy, ClaimStore, Done, Mismatch, Won
from celery_hardened.idempotency.memory import InMemoryClaimStore
from celery_hardened.idempotency.store import RedisClaimStore
from tests.support.until import until

KEY = "shop.charge:1:5f1d"


@dataclass
class Claims:
    """A store, and what happens to it."""

    store: ClaimStore
    lose: Callable[[], object]
    """Its records are gone."""

    ms: Callable[[], int]
    """The time of its clock."""

    def claim(self, owner: str, *, key: str = KEY, **more: Any) -> Answer:
        given: dict[str, Any] = {"task_id": "t1", "fingerprint": "f1", "lease": 60.0, "lifetime": 600.0, **more}
        return self.store.claim(key, owner=owner, **given)

    def won(self, owner: str, **more: Any) -> int:
        """The fence of a claim that has to be won."""
        answer = self.claim(owner, **more)
        assert isinstance(answer, Won), answer
        assert answer.fence is not None
        return answer.fence

    def finish(self, owner: str, result: bytes | None = b"1", *, lifetime: float = 600.0) -> bool:
        return self.store.finish(KEY, owner=owner, result=result, lifetime=lifetime)

    def renew(self, owner: str, lease: float = 60.0) -> bool:
        return self.store.renew(KEY, owner=owner, lease=lease)

    def release(self, owner: str) -> bool:
        return self.store.release(KEY, owner=owner)


@pytest.fixture(params=["memory", "valkey", "redis7"])
def claims(request: pytest.FixtureRequest, unique: str) -> Iterator[Claims]:
    if request.param == "memory":
        memory = InMemoryClaimStore()
        yield Claims(memory, memory._records.clear, lambda: int(memory._clock() * 1000))
        return
    client = Redis.from_url(request.getfixturevalue(request.param).database())

    def ms() -> int:
        seconds, micros = client.time()
        return int(seconds * 1000 + micros // 1000)

    yield Claims(RedisClaimStore(client, prefix=unique), lambda: client.delete(f"{unique}:claim:{KEY}"), ms)
    client.close()


# --- from state to state ------------------------------------------------------------------------------------


def test_a_key_that_nobody_has_is_won(claims: Claims) -> None:
    claims.won("a")


def test_a_claimed_key_is_busy(claims: Claims) -> None:
    """For as long as is left of the lease; and whether the holder is a start of the asker's own message is told."""
    claims.won("a", task_id="t1")
    other, own = claims.claim("b", task_id="t2"), claims.claim("b", task_id="t1")
    assert isinstance(other, Busy)
    assert isinstance(own, Busy)
    assert (other.same, own.same) == (False, True)
    assert 30 < own.left <= other.left <= 60


def test_a_lapsed_claim_is_won_by_anybody(claims: Claims) -> None:
    """Its holder died, or stands still."""
    first = claims.won("a", lease=0)
    assert claims.won("b") > first
    assert isinstance(claims.claim("c"), Busy)


@pytest.mark.parametrize("result", [b"1", b"", b"\x00\xff" * 40_000, None])
def test_done_work_answers_with_its_result(claims: Claims, result: bytes | None) -> None:
    """Bytes as they were given; ``None``, and not nothing, where none was kept."""
    claims.won("a")
    assert claims.finish("a", result)
    assert claims.claim("b", task_id="t2") == Done(result)
    assert claims.claim("b", task_id="t1") == Done(result)


def test_done_work_stays_done_when_the_lease_has_ended(claims: Claims) -> None:
    claims.won("a", lease=0)
    claims.finish("a")
    assert claims.claim("b") == Done(b"1")


def test_a_released_key_is_won_at_once(claims: Claims) -> None:
    """By the retry, or by anybody; the fence was kept."""
    first = claims.won("a")
    assert claims.release("a")
    assert claims.won("b") > first
    assert isinstance(claims.claim("a"), Busy), "who released it has it no more"


def test_a_key_is_known_since_its_first_claim(claims: Claims) -> None:
    """Through failures, lapsed leases and repeated claims, until it is forgotten: what begins then is other work."""

    def since(owner: str, **more: Any) -> int | None:
        answer = claims.claim(owner, **more)
        assert isinstance(answer, Won), answer
        return answer.since

    first = claims.won("a")
    assert since("a") == first
    claims.release("a")
    assert [since("b", lease=0), since("c", lease=0), since("c", lease=0), since("d")] == [first] * 4
    claims.lose()
    until(lambda: claims.ms() > first, what="the next millisecond")
    again = claims.won("e")
    assert again > first
    assert since("e") == again


def test_keys_do_not_mix(claims: Claims) -> None:
    claims.won("a")
    claims.won("b", key="shop.charge:1:other")
    claims.finish("a")
    assert isinstance(claims.claim("c", key="shop.charge:1:other"), Busy)


# --- who lost the key changes nothing --------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["finish", "renew", "release"])
@pytest.mark.parametrize("successor", ["works", "finished", "released"])
def test_a_zombie_is_refused(claims: Claims, step: str, successor: str) -> None:
    """Its lease ended and another run has, or had, the key: nothing of that run is touched."""
    claims.won("zombie", lease=0)
    fence = claims.won("b")
    if successor == "finished":
        claims.finish("b", b"of b")
    elif successor == "released":
        claims.release("b")

    steps = {"finish": lambda: claims.finish("zombie", b"late"), "renew": lambda: claims.renew("zombie", 0.0)}
    assert steps.get(step, lambda: claims.release("zombie"))() is False

    if successor == "works":
        assert isinstance(claims.claim("c"), Busy)
        assert claims.finish("b", b"of b")
    if successor == "released":
        assert claims.won("c") > fence
    else:
        assert claims.claim("c") == Done(b"of b")


@pytest.mark.parametrize("step", ["finish", "renew", "release"])
def test_nobody_owns_a_record_that_is_gone(claims: Claims, step: str) -> None:
    """The server lost it: no step makes a new one, which would have neither fence nor fingerprint."""
    claims.won("a")
    claims.lose()
    steps = {"finish": lambda: claims.finish("a"), "renew": lambda: claims.renew("a")}
    assert steps.get(step, lambda: claims.release("a"))() is False
    claims.won("b")


@pytest.mark.parametrize("step", ["finish", "renew", "release"])
def test_a_lapsed_lease_that_nobody_took_over_is_still_the_owners(claims: Claims, step: str) -> None:
    """The work was done by nobody else, so its end counts; and a renewal holds it again."""
    claims.won("a", lease=0)
    if step == "finish":
        assert claims.finish("a")
        assert claims.claim("b") == Done(b"1")
    elif step == "renew":
        assert claims.renew("a")
        assert isinstance(claims.claim("b"), Busy)
    else:
        assert claims.release("a")
        claims.won("b")


def test_a_renewal_begins_the_lease_anew(claims: Claims) -> None:
    claims.won("a", lease=10)
    assert claims.renew("a", 100)
    answer = claims.claim("b")
    assert isinstance(answer, Busy)
    assert 50 < answer.left <= 100
    assert claims.renew("a", 0)
    claims.won("b")


# --- the answer was lost on the way, and the step is sent again ----------------------------------------------


def test_a_claim_may_be_repeated(claims: Claims) -> None:
    """The same owner gets the same fence, and its whole lease."""
    fence = claims.won("a", lease=10)
    assert claims.won("a", lease=100) == fence
    answer = claims.claim("b")
    assert isinstance(answer, Busy)
    assert answer.left > 50


def test_a_repeated_claim_is_won_also_when_its_lease_has_ended(claims: Claims) -> None:
    fence = claims.won("a", lease=0)
    assert claims.won("a") == fence
    assert isinstance(claims.claim("b"), Busy)


def test_a_finish_may_be_repeated(claims: Claims) -> None:
    claims.won("a")
    assert [claims.finish("a"), claims.finish("a")] == [True, True]
    assert claims.claim("b") == Done(b"1")


def test_a_release_may_be_repeated(claims: Claims) -> None:
    claims.won("a")
    assert [claims.release("a"), claims.release("a")] == [True, True]
    claims.won("b")
    assert claims.release("a") is False


def test_done_work_is_not_released(claims: Claims) -> None:
    """The finish arrived, its answer did not, and the run takes it for a failure."""
    claims.won("a")
    claims.finish("a")
    assert claims.release("a") is False
    assert claims.claim("b") == Done(b"1")


def test_released_work_is_not_done(claims: Claims) -> None:
    """Whoever gave the key back has nothing to say about the work."""
    claims.won("a")
    claims.release("a")
    assert claims.finish("a") is False
    claims.won("b")


@pytest.mark.parametrize("end", ["finish", "release"])
def test_a_renewal_that_comes_after_the_end_is_no_loss(claims: Claims, end: str) -> None:
    """It was under way when the run ended: it changes nothing, and nobody has taken the key away."""
    claims.won("a")
    assert claims.finish("a") if end == "finish" else claims.release("a")
    assert claims.renew("a") is True
    if end == "finish":
        assert claims.claim("b") == Done(b"1")
    else:
        claims.won("b")


# --- the fence -------------------------------------------------------------------------------------------------


def test_the_fence_grows_with_every_claim(claims: Claims) -> None:
    """Faster than the clock, too."""
    fences = []
    for turn in range(50):
        fences.append(claims.won(f"owner {turn}", lease=0 if turn % 2 else 60))
        if not turn % 2:
            claims.release(f"owner {turn}")
    assert fences == sorted(set(fences))


def test_the_fence_grows_also_when_the_record_was_lost(claims: Claims) -> None:
    """By the server's clock: an older run's number stays the smaller one."""
    first = claims.won("a")
    until(lambda: claims.ms() > first, within=10, what="the clock to go on")
    claims.lose()
    assert claims.won("b") > first


# --- other arguments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["claimed", "done"])
def test_other_arguments_are_a_mismatch(claims: Claims, state: str) -> None:
    """Found before anything is said of waiting, or of a result; and nothing is changed by it."""
    claims.won("a", fingerprint="f1")
    if state == "done":
        claims.finish("a")
    assert claims.claim("b", task_id="t2", fingerprint="f2") == Mismatch()
    assert claims.renew("a")
    assert isinstance(claims.claim("c", task_id="t2", fingerprint="f1"), {"claimed": Busy, "done": Done}[state])


def test_nothing_is_compared_after_a_lapse(claims: Claims) -> None:
    """Its holder was killed, and nothing is known to be done: a new version that is called with one argument more
    may run, and is then what others are compared to."""
    claims.won("a", fingerprint="f1", lease=0)
    claims.won("b", task_id="t2", fingerprint="f2")
    assert claims.claim("c", task_id="t3", fingerprint="f1") == Mismatch()


@pytest.mark.parametrize("task_id", ["t1", "t2"])
def test_nothing_is_compared_after_a_failure(claims: Claims, task_id: str) -> None:
    """Nothing was done for the old arguments; the corrected call may run, and is then what others are compared to."""
    claims.won("a", fingerprint="f1")
    claims.release("a")
    claims.won("b", task_id=task_id, fingerprint="f2")
    assert claims.claim("c", task_id="t3", fingerprint="f1") == Mismatch()


def test_a_message_is_busy_with_itself_and_no_mismatch(claims: Claims) -> None:
    """Delivered again, to a version whose arguments have a default more; or its retry, with arguments of its own. It
    must wait for its own first run, and never be buried beside it."""
    claims.won("a", task_id="t1", fingerprint="f1")
    answer = claims.claim("b", task_id="t1", fingerprint="f2")
    assert isinstance(answer, Busy)
    assert answer.same


def test_a_message_that_is_done_is_no_mismatch_with_itself(claims: Claims) -> None:
    """Killed between a retry's publish and the ack of what it retries: that one comes back, with the old arguments."""
    claims.won("a", task_id="t1", fingerprint="f1")
    claims.finish("a")
    assert claims.claim("b", task_id="t1", fingerprint="f2") == Done(b"1")
    assert claims.claim("b", task_id="t2", fingerprint="f2") == Mismatch()


@pytest.mark.parametrize(("first", "second"), [("", "f1"), ("f1", ""), ("", "")])
def test_arguments_are_compared_only_if_both_tell_them(claims: Claims, first: str, second: str) -> None:
    claims.won("a", fingerprint=first)
    assert isinstance(claims.claim("b", task_id="t2", fingerprint=second), Busy)
    claims.finish("a")
    assert claims.claim("b", task_id="t2", fingerprint=second) == Done(b"1")


# --- how long it is remembered -----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["claimed", "released", "done"])
def test_a_record_is_forgotten_after_its_lifetime(claims: Claims, end: str) -> None:
    claims.won("a", lease=0.05, lifetime=0.1)
    if end == "released":
        claims.release("a")
    elif end == "done":
        claims.finish("a", lifetime=0.1)
    until(lambda: isinstance(claims.claim("b", lease=0), Won), within=10, what="the record to be forgotten")


# --- all together ------------------------------------------------------------------------------------------------


def test_one_of_many_wins(claims: Claims) -> None:
    """Sixteen threads claim one key at once, ten times over."""
    for turn in range(10):
        start, answers = threading.Barrier(16), []

        def ask(number: int, turn: int = turn, start: threading.Barrier = start, to: list[Answer] = answers) -> None:
            start.wait()
            to.append(claims.claim(f"owner {number}", key=f"key {turn}", task_id=f"t{number}"))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(type(answer).__name__ for answer in answers) == ["Busy"] * 15 + ["Won"]
