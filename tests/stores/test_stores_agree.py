"""The stores against each other: whatever is done, the in-memory store and Redis answer the same."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from redis import Redis

from celery_hardened.dead_letter.contract import DeadLetterStore, Query, Stats, StoredLetter
from celery_hardened.dead_letter.memory import InMemoryDeadLetterStore
from celery_hardened.dead_letter.store import RedisDeadLetterStore
from celery_hardened.errors import DeadLetterNotFoundError
from tests.stores.letters import ROOMY, letter, redriven

TIGHT = replace(ROOMY, max_count=6, max_count_per_task=4)

IDS = [f"letter-{number}" for number in range(5)]
LETTERS = {
    one: replace(letter(one), task_id=one, task=f"shop.t{number % 2}", parked=number == 4, group_id=f"g{number}")
    for number, one in enumerate(IDS)
}
ids = st.sampled_from(IDS)
tokens = st.sampled_from("abc")
leases = st.sampled_from([0.0, 3600.0])
states = st.sampled_from([None, "dead", "parked", "redriving", "redriven", "resolved", "discarded"])


def shown(store: DeadLetterStore, letter_id: str) -> tuple[object, ...]:
    """What there is to see of a letter, times apart."""
    try:
        stored = store.get(letter_id)
    except DeadLetterNotFoundError:
        return ()
    audit = [(entry.action, entry.by, entry.why) for entry in stored.audit]
    return (stored.letter, stored.state, stored.leased, stored.successor, audit)


class StoresAgree(RuleBasedStateMachine):
    """Every rule does one thing to both stores and compares the answers."""

    def __init__(self) -> None:
        super().__init__()
        client = Redis.from_url(self.url)
        self.both = (
            InMemoryDeadLetterStore(retention=TIGHT),
            RedisDeadLetterStore(client, prefix=uuid.uuid4().hex, retention=TIGHT),
        )
        self.client = client
        self.extra = 0

    url = ""

    def teardown(self) -> None:
        self.client.close()

    def agree(self, method: str, *args: object, **options: object) -> None:
        one, other = (getattr(store, method)(*args, **options) for store in self.both)
        if isinstance(one, list):
            one, other = ([stored.letter.id for stored in answer] for answer in (one, other))
        assert one == other, (method, args, options)

    @rule(one=ids)
    def put(self, one: str) -> None:
        self.agree("put", LETTERS[one])

    @rule(one=ids, token=tokens)
    def put_after_redrive(self, one: str, token: str) -> None:
        before = LETTERS[one]
        self.agree("put", replace(redriven(before, token=token), id=f"{one}-again", task=before.task))

    @rule(one=ids, state=states)
    def put_many(self, one: str, state: str | None) -> None:
        self.extra += 1
        imported = StoredLetter(letter=LETTERS[one], state=state or "dead", stored_at=float(self.extra))  # type: ignore[arg-type]
        self.agree("put_many", [imported])

    @rule(some=st.lists(ids, unique=True), token=tokens, lease=leases)
    def begin(self, some: list[str], token: str, lease: float) -> None:
        self.agree("begin_redrive", some, token=token, by="ann", why="", lease=lease)

    @rule(some=st.lists(ids, unique=True), token=tokens)
    def finish(self, some: list[str], token: str) -> None:
        self.agree("finish_redrive", some, token=token)

    @rule(some=st.lists(ids, unique=True), token=tokens)
    def cancel(self, some: list[str], token: str) -> None:
        self.agree("cancel_redrive", some, token=token, why="no")

    @rule(one=ids, token=tokens)
    def accept(self, one: str, token: str) -> None:
        self.agree("accept_start", one, token=token)

    @rule(one=ids)
    def resolve(self, one: str) -> None:
        self.agree("resolve", one, by="w1", why="")

    @rule(one=ids)
    def discard(self, one: str) -> None:
        self.agree("discard", one, by="ann", why="")

    @rule(one=ids)
    def delete(self, one: str) -> None:
        self.agree("delete", one)

    @rule(state=states, task=st.sampled_from([None, "shop.t0"]), reason=st.sampled_from([None, "permanent", "lost"]))
    def search(self, state: str | None, task: str | None, reason: str | None) -> None:
        query = Query(state=state, task=task, reason=reason)  # type: ignore[arg-type]
        found = [[stored.letter.id for stored in store.find(query).letters] for store in self.both]
        assert found[0] == found[1]
        assert [list(store.ids(query)) for store in self.both] == [found[0][::-1]] * 2
        assert [store.count(query) for store in self.both] == [len(found[0])] * 2

    @invariant()
    def same_letters(self) -> None:
        for one in (*IDS, *(f"{each}-again" for each in IDS)):
            assert shown(self.both[0], one) == shown(self.both[1], one)

    @invariant()
    def same_counts(self) -> None:
        def timeless(stats: Stats) -> Stats:
            return replace(stats, oldest=None, newest=None)

        assert timeless(self.both[0].stats()) == timeless(self.both[1].stats())
        assert sorted(self.both[0].parked_groups()) == sorted(self.both[1].parked_groups())


@pytest.mark.slow
def test_stores_agree(each_redis_url: str) -> None:
    """Random histories of everything a store can do, retention by count included, on Valkey and Redis."""
    machine = type("Machine", (StoresAgree,), {"url": each_redis_url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            # Shrinking would take longer than the test may; the history that failed is printed whole.
            phases=[Phase.generate],
        ),
    )
