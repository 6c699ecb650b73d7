"""Whatever is done in whatever order, the scripts of schedules and a model in Python say the same."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from redis import Redis

from celery_hardened.beat.names import Keys
from celery_hardened.beat.policy import Overlap
from celery_hardened.beat.store import NotLeaderError, Outgoing, StepToTake, Taken
from tests.stores.beat import HISTORY, Box

NAMES = st.sampled_from(["s", "t"])
OWNERS = st.sampled_from(["a", "b"])
TASKS = st.sampled_from(["t1", "t2", "t3"])
#: Few, so that steps meet records they were made for, records they have made, and neither.
RECORDS = st.sampled_from(["", "r1", "r2"])
OVERLAPS: st.SearchStrategy[Overlap] = st.sampled_from(
    ["allow", "skip", "buffer_one", "cancel_other", "terminate_other"]
)


@dataclass
class Model:
    """What Redis should hold."""

    leader: str = ""
    records: dict[str, str] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    holders: dict[str, str] = field(default_factory=dict)
    revokes: list[tuple[str, bool]] = field(default_factory=list)
    histories: dict[str, list[str]] = field(default_factory=dict)
    queues: dict[str, list[str]] = field(default_factory=dict)
    broken: bool = False
    """The queue ``bad`` is no list."""

    triggered: set[str] = field(default_factory=set)
    stamp: int = 0

    def take(self, owner: str, steps: list[StepToTake]) -> list[Taken] | None:
        if owner != self.leader:
            return None
        return [self._take(step) for step in steps]

    def _take(self, step: StepToTake) -> Taken:
        current, holder = self.records.get(step.name, ""), self._other(step)
        if step.new == step.old:
            return Taken("failed")
        if current != step.old:
            if current == step.new:
                return Taken("taken")
            if step.overlap != "allow" and current == step.new_if_overlapped:
                return Taken("overlapped", holder=holder)
            return Taken("stale", current=current)
        if step.checks_pause and step.name in self.paused:
            return Taken("paused")
        if holder and step.overlap in ("skip", "buffer_one"):
            self.records[step.name] = step.new_if_overlapped
            self._note(step.name, step.history_if_overlapped)
            return Taken("overlapped", holder=holder)
        if not self._send(step, holder):
            return Taken("failed")
        self.records[step.name] = step.new
        return Taken("taken", holder=holder)

    def trigger(self, step: StepToTake, *, force: bool) -> Taken:
        if step.task_id in self.triggered:
            return Taken("done before")
        if step.checks_pause and step.name in self.paused:
            return Taken("paused")
        holder = self._other(step)
        if holder and not force and step.overlap in ("skip", "buffer_one"):
            return Taken("overlapped", holder=holder)
        if not self._send(step, "" if force else holder, keeps=bool(holder and force)):
            return Taken("failed")
        self.triggered.add(step.task_id)
        return Taken("taken", holder="" if force else holder)

    def _other(self, step: StepToTake) -> str:
        holder = "" if step.overlap == "allow" else self.holders.get(step.name, "")
        return "" if holder == step.task_id else holder

    def _send(self, step: StepToTake, holder: str, *, keeps: bool = False) -> bool:
        if self.broken and any(message.key.endswith("bad") for message in step.messages):
            return False
        for message in step.messages:
            self.queues.setdefault(message.key, []).append(message.payload.decode())
        if step.overlap != "allow" and not keeps:
            self.holders[step.name] = step.task_id
        if holder:
            self.revokes.append((holder, step.overlap == "terminate_other"))
        self._note(step.name, step.history)
        return True

    def _note(self, name: str, line: str) -> None:
        self.histories[name] = [line, *self.histories.get(name, [])][:HISTORY]


def plain(answer: Taken) -> Taken:
    """Without the words of the trouble."""
    return Taken(answer.outcome, answer.holder, answer.current)


class Machine(RuleBasedStateMachine):
    client: Redis

    def __init__(self) -> None:
        super().__init__()
        self.box = Box(self.client, Keys(uuid4().hex[:10]))
        self.model = Model()
        self.box.lead(None)
        self.last: tuple[str, list[StepToTake], Any] | None = None
        self.number = 0

    def make(self, name: str, old: str, new: str, overlap: Overlap, task: str, checks: bool, bad: bool) -> StepToTake:
        self.number += 1
        messages: tuple[Outgoing, ...] = (self.box.message(f"m{self.number}"),)
        if bad:
            messages += (self.box.message(f"n{self.number}", f"{self.box.queue}-bad"),)
        return StepToTake(
            name=name, old=old, new=new, history=json.dumps({"n": self.number}), messages=messages, checks_pause=checks,
            overlap=overlap, window=self.box.keys.window(name), window_ttl=600, task_id=task,
            new_if_overlapped=f"{new} gave way", history_if_overlapped=json.dumps({"way": self.number}),
        )  # fmt: skip

    def take(self, owner: str, steps: list[StepToTake]) -> list[Taken] | None:
        try:
            answer = [plain(one) for one in self.box.store.take(owner, steps)]
        except NotLeaderError:
            return None
        return answer

    @rule(owner=st.sampled_from(["a", "a", "a", "b", ""]))
    def lead(self, owner: str) -> None:
        self.box.lead(owner or None)
        self.model.leader = owner

    step = st.tuples(NAMES, RECORDS, RECORDS, OVERLAPS, TASKS, st.booleans(), st.booleans())

    @rule(owner=OWNERS, steps=st.lists(st.tuples(step, st.booleans()), min_size=1, max_size=4))
    def fire(self, owner: str, steps: list[Any]) -> None:
        """Half of the steps are made on the record as it is, like a beat's."""
        made = []
        for (name, old, new, *rest), knows in steps:
            made.append(self.make(name, self.model.records.get(name, "") if knows else old, new or "r3", *rest))
        answer = self.take(owner, made)
        assert answer == self.model.take(owner, made)
        self.last = (owner, made, answer)

    @rule()
    def repeat(self) -> None:
        """At once: what was taken is answered so again, and the model, which fires no repeat, stays right."""
        if self.last is None:
            return
        owner, steps, _ = self.last
        assert self.take(owner, steps) == self.model.take(owner, steps)

    @rule(parts=step, force=st.booleans(), again=st.booleans())
    def trigger(self, parts: Any, force: bool, again: bool) -> None:
        name, _, _, overlap, task, checks, bad = parts
        step = self.make(name, "", "", overlap, task if again else uuid4().hex, checks, bad)
        for _ in range(2):
            assert plain(self.box.store.trigger(step, force=force)) == self.model.trigger(step, force=force)

    @rule(name=NAMES, on=st.booleans(), ended=st.booleans())
    def pause(self, name: str, on: bool, ended: bool) -> None:
        if on:
            self.box.store.pause(name, by="me", why="", until=1.0 if ended else None)
        else:
            self.box.store.resume(name)
        self.model.paused = self.model.paused | {name} if on and not ended else self.model.paused - {name}
        self.model.stamp += 1

    @rule(name=NAMES)
    def end_run(self, name: str) -> None:
        holder = self.model.holders.pop(name, None)
        assert self.box.windows.free(f"schedule:{name}") == holder

    @rule(broken=st.booleans())
    def break_queue(self, broken: bool) -> None:
        key = f"{self.box.queue}-bad"
        self.client.delete(key)
        self.model.queues.pop(key, None)
        if broken:
            self.client.set(key, "x")
        self.model.broken = broken

    @rule(most=st.integers(1, 3), owner=OWNERS)
    def revoke(self, most: int, owner: str) -> None:
        if owner != self.model.leader:
            with pytest.raises(NotLeaderError):
                self.box.store.revokes(owner, most)
            return
        found = self.box.store.revokes(owner, most)
        assert [(one.id, one.terminate) for one in found] == self.model.revokes[:most]
        self.box.store.revoked(owner, found)
        gone = set(self.model.revokes[:most])
        self.model.revokes = [one for one in self.model.revokes if one not in gone]

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        if self.model.leader:
            self.box.store.forget(self.model.leader, [name])
            self.model.records.pop(name, None)
            self.model.histories.pop(name, None)

    @rule(name=NAMES, record=st.sampled_from(["r1", "r2"]), overwrite=st.booleans(), force=st.booleans())
    def adopt(self, name: str, record: str, overwrite: bool, force: bool) -> None:
        if self.model.leader and not force:
            return
        written = self.box.store.adopt({name: record}, overwrite=overwrite, force=force)
        if overwrite or name not in self.model.records:
            self.model.records[name] = record
        assert written == ([name] if self.model.records[name] == record else [])
        self.model.stamp += 1

    @invariant()
    def agree(self) -> None:
        box, model = self.box, self.model
        assert box.store.records() == model.records
        assert set(box.store.paused()) == model.paused
        assert box.store.stamp() == model.stamp
        for name in ("s", "t"):
            assert box.holder(name) == model.holders.get(name)
            assert box.store.history(name, 100) == [json.loads(line) for line in model.histories.get(name, [])]
        for key in (box.queue, f"{box.queue}-bad"):
            if not (model.broken and key.endswith("bad")):
                assert box.messages(key) == model.queues.get(key, [])


@pytest.mark.parametrize("server", ["valkey", "redis7"])
def test_scripts_and_model_agree(request: pytest.FixtureRequest, server: str) -> None:
    """Two schedules, two beats, pauses, runs that end, queues that are none, runs by hand, and repeats of all."""
    client = Redis.from_url(request.getfixturevalue(server).database())
    machine = type("Machine", (Machine,), {"client": client})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    client.close()
