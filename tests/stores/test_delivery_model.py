"""Delivery against a model: whatever workers do, or stop doing, a message is in one place."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from redis import Redis

from tests.stores.delivery import LEASE, Box, message

CONSUMERS = ("a", "b", "c")
QUEUES = ("q", "r")

consumers = st.sampled_from(CONSUMERS)
queues = st.sampled_from(QUEUES)


def make(client: Redis, unique: str) -> type[RuleBasedStateMachine]:
    numbers = iter(range(1, 10_000))

    class Delivery(RuleBasedStateMachine):
        """Two queues and three consumers, which hold by their own account what their fetches answered."""

        @initialize()
        def begin(self) -> None:
            self.box = Box(client, unique, prefix=f"{unique}-{next(numbers)}-")
            self.published: Counter[Any] = Counter()
            self.done: Counter[Any] = Counter()
            self.held: dict[str, dict[str, Any]] = {consumer: {} for consumer in CONSUMERS}
            self.number = 0

        # --- a producer, a consumer ---------------------------------------------------------------

        @rule(queue=queues, priority=st.sampled_from([0, 0, 3, 9]), count=st.integers(1, 4))
        def publish(self, queue: str, priority: int, count: int) -> None:
            for _ in range(count):
                self.number += 1
                self.box.put(queue, message(self.number, priority=priority), step=priority)
                self.published[self.number] += 1

        @rule(queue=queues)
        def publish_garbage(self, queue: str) -> None:
            self.number += 1
            self.box.put(queue, b"garbage %d" % self.number)
            self.published[f"garbage {self.number}"] += 1

        @rule(consumer=consumers, limit=st.integers(1, 3), own=st.sampled_from([None, *QUEUES]), acks=st.booleans())
        def fetch(self, consumer: str, limit: int, own: str | None, acks: bool) -> None:
            ending = dict(list(self.held[consumer].items())[:2]) if acks else {}
            first = self.box._numbers.get(consumer, 0)
            there = set(self.box.tags)
            taken = self.box.fetch(*QUEUES, consumer=consumer, limit=limit, own=own, acks=list(ending))
            for tag, word in ending.items():
                del self.held[consumer][tag]
                if tag in there:
                    self.done[word] += 1
            assert len(taken.items) + taken.bad <= limit
            for number, word in enumerate(taken.words):
                self.held[consumer][f"h1:{consumer}:{first + number:012d}"] = word

        @rule(consumer=consumers, queue=queues)
        def wait(self, consumer: str, queue: str) -> None:
            self.box.wait(queue, consumer=consumer)

        @rule(consumer=consumers, which=st.integers(0, 3))
        def ack(self, consumer: str, which: int) -> None:
            for tag in list(self.held[consumer])[which : which + 1]:
                word = self.held[consumer].pop(tag)
                if tag in self.box.tags:
                    self.done[word] += 1
                self.box.scripts.end([tag])

        @rule(consumer=consumers, started=st.booleans(), last=st.booleans(), twice=st.booleans())
        def give_back(self, consumer: str, started: bool, last: bool, twice: bool) -> None:
            tags = list(self.held[consumer])[:2]
            for _ in range(1 + twice):
                self.box.scripts.give_back(tags, started=started, last=last)
            for tag in tags:
                del self.held[consumer][tag]

        @rule(consumer=consumers, due=st.booleans())
        def delay(self, consumer: str, due: bool) -> None:
            for tag in list(self.held[consumer])[:1]:
                self.box.scripts.delay([(tag, tag.replace("h1:", "h1d:"), -1.0 if due else 1e6)])
                del self.held[consumer][tag]

        @rule(consumer=consumers)
        def renew(self, consumer: str) -> None:
            """What is told as lost is exactly what is not there."""
            held = self.held[consumer]
            there = set(self.box.tags)
            lost = self.box.scripts.renew(list(held), lists=[], lease=LEASE)
            assert set(lost) == set(held) - there
            for tag in lost:
                del held[tag]

        @rule(consumer=consumers)
        def leave(self, consumer: str) -> None:
            self.box.scripts.release([self.box.member(queue, consumer=consumer) for queue in QUEUES])

        # --- time, death --------------------------------------------------------------------------

        @rule(consumer=consumers)
        def freeze(self, consumer: str) -> None:
            """Its leases run out; it does not know."""
            self.box.expire(*[tag for tag in self.held[consumer] if tag in self.box.tags])

        @rule(consumer=consumers)
        def kill(self, consumer: str) -> None:
            """It is gone with all it knew; somebody new has its name by chance, and tags of its own."""
            self.freeze(consumer)
            self.held[consumer] = {}
            for queue in QUEUES:
                self.box.client.zadd(self.box.keys.fetching, {self.box.member(queue, consumer=consumer): 1}, xx=True)

        @rule(page=st.sampled_from([1, 3, 1000]), grace=st.sampled_from([0.0, 0.0, 100.0]))
        def sweep(self, page: int, grace: float) -> None:
            self.box.client.hdel(self.box.keys.sweep, "grace")
            self.box.sweep(page=page, pause=-1 if grace else 1e12, grace=grace)

        # --- what has to be true --------------------------------------------------------------------

        @invariant()
        def everything_is_in_one_place(self) -> None:
            if not hasattr(self, "box"):
                return
            box = self.box
            raws: list[bytes] = []
            for queue in QUEUES:
                raws += box.waiting(queue)
                for consumer in CONSUMERS:
                    raws += box.client.lrange(box.keys.own_list(consumer, queue), 0, -1)
            raws += [json.dumps(json.loads(entry)[0]).encode() for entry in box.entries().values()]
            there = Counter(json.loads(raw)["headers"]["word"] for raw in raws if not raw.startswith(b"garbage"))
            there += Counter(raw.decode() for raw in raws if raw.startswith(b"garbage"))
            there += Counter(raw.decode() for raw in box.aside())
            assert there + self.done == self.published
            assert not any(raw.count(b"hardened-delivery") > 1 for raw in raws)
            assert set(box.scores()) == set(box.tags), "an entry without index would never be swept"

    return Delivery


@pytest.mark.parametrize("server", ["valkey", "redis7"])
def test_a_message_is_in_one_place(request: pytest.FixtureRequest, server: str, unique: str) -> None:
    """Fetches, acks, returns, delays, renewals, expiries, sweeps and deaths in any order: no message is ever
    in no place, and none in two."""
    client = Redis.from_url(request.getfixturevalue(server).database())
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        make(client, unique),
        settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    client.close()
