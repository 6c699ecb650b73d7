"""What is let through to Celery, and that nothing which gets through, or does not, does any harm."""

from __future__ import annotations

import logging
import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery, Task
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_hardened import HardenedTask, Hardening, Query
from celery_hardened.pipeline.admission import body_problem, header_problem
from tests.support.in_process import InProcessWorker
from tests.unit.conftest import MakeApp

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
MAX_ETA = 1000.0
GOOD = {
    "task": "charge", "id": "i1", "retries": 0, "timelimit": [None, None], "root_id": None, "parent_id": None,
    "group": None, "shadow": None, "eta": None, "expires": None, "stamped_headers": None, "stamps": {},
}  # fmt: skip


def problem(**changes: Any) -> str | None:
    return header_problem({**GOOD, **changes}, now=NOW, max_eta=MAX_ETA)


# --- headers ------------------------------------------------------------------------------------------------


def test_the_least_and_the_most_a_header_may_say() -> None:
    """Only id and task are needed; what Celery itself sends is fine."""
    assert header_problem({"task": "charge", "id": "i1"}, now=NOW, max_eta=MAX_ETA) is None
    assert problem() is None


@pytest.mark.parametrize(
    "changes",
    [
        {"retries": 3},
        {"retries": None},
        {"timelimit": None},
        {"timelimit": []},
        {"timelimit": (None, None)},
        {"timelimit": [300, 240.5]},
        {"timelimit": [0, None]},
        {"eta": (NOW + timedelta(seconds=999)).isoformat()},
        {"eta": "2026-03-01T00:00:00"},
        {"eta": "2026-03-01T00:00:00Z"},
        {"eta": "1999-01-01T00:00:00+09:00"},
        {"eta": NOW},
        {"eta": "0002-01-01T00:00:00+14:00"},
        {"expires": "2999-01-01T00:00:00"},
        {"stamped_headers": ["a"], "stamps": {"a": ["b"]}},
        {"root_id": "r", "parent_id": "p", "group": "g", "shadow": "s"},
        {"anything": {1, 2}},
    ],
    ids=str,
)
def test_good_headers(changes: dict[str, Any]) -> None:
    assert problem(**changes) is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"id": None}, "header 'id' is None"),
        ({"id": ""}, "header 'id' is of type str, not a non-empty string"),
        ({"id": 7}, "header 'id' is of type int"),
        ({"id": ["i1"]}, "header 'id' is of type list"),
        ({"task": None}, "header 'task' is None"),
        ({"task": {"a": 1}}, "header 'task' is of type dict"),
        ({"retries": "1"}, "header 'retries' is of type str"),
        ({"retries": -1}, "header 'retries' is of type int, not a count"),
        ({"retries": 1.0}, "header 'retries' is of type float"),
        ({"retries": True}, "header 'retries' is True"),
        ({"timelimit": 300}, "header 'timelimit' is of type int, not a pair"),
        ({"timelimit": "ab"}, "header 'timelimit' is of type str, not a pair"),
        ({"timelimit": [1]}, "not a pair"),
        ({"timelimit": [1, 2, 3]}, "not a pair"),
        ({"timelimit": {"a": 1, "b": 2}}, "not a pair"),
        ({"timelimit": ["1", None]}, "header 'timelimit' holds of type str, not seconds"),
        ({"timelimit": [None, -1]}, "not seconds"),
        ({"timelimit": [True, None]}, "not seconds"),
        ({"timelimit": [float("nan"), None]}, "not seconds"),
        ({"timelimit": [None, float("inf")]}, "not seconds"),
        ({"root_id": 7}, "header 'root_id' is of type int"),
        ({"parent_id": []}, "header 'parent_id' is of type list"),
        ({"group": {}}, "header 'group' is of type dict"),
        ({"shadow": 1}, "header 'shadow' is of type int"),
        ({"eta": 1_700_000_000}, "header 'eta' is of type int, not a time"),
        ({"eta": "soon"}, "header 'eta' is no ISO 8601 time"),
        ({"eta": ""}, "header 'eta' is no ISO 8601 time"),
        ({"eta": "0001-01-01T00:00:00+23:59"}, "header 'eta' is no ISO 8601 time"),  # Celery cannot convert it
        ({"eta": "2026-13-01T00:00:00"}, "header 'eta' is no ISO 8601 time"),
        ({"eta": (NOW + timedelta(seconds=1001)).isoformat()}, "further away than hardened_max_eta (1000 s)"),
        ({"eta": "9999-12-31T23:59:59-12:00"}, "header 'eta'"),
        ({"expires": 60}, "header 'expires' is of type int"),
        ({"expires": "never"}, "header 'expires' is no ISO 8601 time"),
        ({"stamped_headers": "a"}, "header 'stamped_headers' is of type str, not a list"),
        ({"stamps": ["a"]}, "header 'stamps' is of type list, not a mapping"),
    ],
    ids=str,
)
def test_bad_headers(changes: dict[str, Any], sentence: str) -> None:
    found = problem(**changes)
    assert found is not None
    assert sentence in found


def test_values_are_not_shown() -> None:
    """They may hold what must not be logged."""
    assert "4111" not in str(problem(id=["4111"])) + str(body_problem([["4111"], {}])) + str(body_problem("4111"))


# --- bodies -------------------------------------------------------------------------------------------------

SIGNATURE = {"task": "next", "args": [], "kwargs": {}, "options": {}}


@pytest.mark.parametrize(
    "payload",
    [
        [[], {}, {}],
        ((), {}, {}),
        [[1], {"a": 1}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}],
        [[], {}, {"callbacks": [SIGNATURE], "errbacks": [SIGNATURE], "chain": [SIGNATURE], "chord": SIGNATURE}],
        [[], {}, {"of a newer Celery": 1}],
        {"args": [], "kwargs": {}},
    ],
    ids=str,
)
def test_good_bodies(payload: Any) -> None:
    assert body_problem(payload) is None


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        (None, "the body is None, not [args, kwargs, embed]"),
        (7, "the body is of type int"),
        ("[[], {}, {}]", "the body is of type str"),
        ([], "the body has 0 parts"),
        ([[], {}], "the body has 2 parts"),
        ([[], {}, {}, {}], "the body has 4 parts"),
        ({"kwargs": {}}, "a mapping without 'args'"),
        (["a", {}, {}], "the args are of type str"),
        ([None, {}, {}], "the args are None"),
        ([{}, {}, {}], "the args are of type dict"),
        ([[], [], {}], "the kwargs are of type list"),
        ([[], None, {}], "the kwargs are None"),
        ([[], {1: 2}, {}], "the kwargs are of type dict, not a mapping of names"),
        ([[], {}, None], "the embed is null"),
        ([[], {}, []], "the embed is of type list"),
        ([[], {}, {1: 2}], "not a mapping of names"),
        ([[], {}, {"callbacks": "x"}], "embed 'callbacks' is of type str, not a list of signatures"),
        ([[], {}, {"errbacks": [1]}], "embed 'errbacks' is of type list, not a list of signatures"),
        ([[], {}, {"chain": SIGNATURE}], "embed 'chain' is of type dict"),
        ([[], {}, {"chord": [SIGNATURE]}], "embed 'chord' is of type list, not a signature"),
        ([[], {}, {"is_eager": True}], "the embed holds 'is_eager', which is not its to say"),
        ([[], {}, {"called_directly": True}], "'called_directly'"),
        ([[], {}, {"properties": {}}], "'properties'"),
        ([[], {}, {"headers": {}, "retries": 9}], "'headers'"),
    ],
    ids=str,
)
def test_bad_bodies(payload: Any, sentence: str) -> None:
    found = body_problem(payload)
    assert found is not None
    assert sentence in found


# --- anything at all ----------------------------------------------------------------------------------------

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["charge", NOW.isoformat()]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=10,
)
names = st.sampled_from([*GOOD, "lang", "origin", "argsrepr", "ignore_result", "replaced_task_nesting", "hardened"])
some_headers = st.dictionaries(names, anything)
some_embeds = st.dictionaries(
    st.sampled_from(["callbacks", "errbacks", "chain", "chord", "is_eager", "id", "x"]), anything | st.just([SIGNATURE])
)
some_bodies = anything | st.tuples(anything, anything, anything | some_embeds).map(list)


@given(
    st.dictionaries(st.text() | names, anything | st.datetimes() | st.binary()), anything | st.binary() | some_bodies
)
def test_it_never_raises(headers: dict[str, Any], payload: Any) -> None:
    """Not for whatever a decoder may bring."""
    for answer in (header_problem(headers, now=NOW, max_eta=MAX_ETA), body_problem(payload)):
        assert answer is None or isinstance(answer, str)


@pytest.mark.parametrize("kind", ["hardened", "contained"])
def test_no_message_harms_a_worker(make_app: MakeApp, kind: str) -> None:
    """
    Random headers and bodies, valid ones among them, all the way through a worker: it goes on,
    every message ends as a run or as a letter, is acked, and a good task afterwards works.
    """
    from celery_hardened import harden

    app = harden(make_app(hardened_dead_letter_max_count=10**6, hardened_dead_letter_max_count_per_task=10**6))
    runs: list[str] = []

    @app.task(base=HardenedTask if kind == "hardened" else Task, shared=False, name="charge", typing=False)
    def charge(*args: Any, **kwargs: Any) -> str:
        runs.append("run")
        if args:
            raise ValueError("broken")
        return "charged"

    logging.disable(logging.CRITICAL)
    hardening = Hardening.expect(app)
    worker = InProcessWorker(app)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(some_headers, some_bodies)
    def one(headers: dict[str, Any], body: Any) -> None:
        runs.clear()
        task_id = uuid.uuid4().hex
        before = _letters(hardening)
        with app.producer_or_acquire() as producer:
            producer.publish(
                body,
                routing_key=app.conf.task_default_queue,
                headers={"task": "charge", "id": task_id, **headers},
                serializer="json",
                retry=False,
            )
        assert worker.run() >= 1
        assert worker.unacked == 0
        assert runs or _letters(hardening) == before + 1 or _expired(headers)

    try:
        one()
        good = charge.delay()
        worker.run()
        assert good.result == "charged"
    finally:
        logging.disable(logging.NOTSET)
        worker.close()


def _letters(hardening: Hardening) -> int:
    return sum(hardening.dead_letters.stats().by_state.values())


def _expired(headers: dict[str, Any]) -> bool:
    """A message that came too late is revoked, as its sender wanted."""
    return bool(headers.get("expires"))


@pytest.mark.parametrize("base", [HardenedTask, Task])
def test_a_null_count_of_retries_is_none_yet(app: Celery, base: type) -> None:
    """Other producers may say null; the failure on record is the task's, not that null cannot be compared."""

    @app.task(base=base, shared=False, name="charge", max_retries=1)
    def charge() -> None:
        raise ConnectionError("gateway down")

    with InProcessWorker(app) as worker:
        with app.producer_or_acquire() as producer:
            producer.publish(
                [[], {}, {}],
                routing_key=app.conf.task_default_queue,
                headers={"task": "charge", "id": "i1", "retries": None},
                serializer="json",
            )
        assert worker.run() == (2 if base is HardenedTask else 1)
    (stored,) = Hardening.expect(app).dead_letters.find(Query(), limit=2).letters
    assert stored.letter.error_type == "ConnectionError"


def test_letters_of_a_flood(app: Celery) -> None:
    """A letter each, also of messages that are the same to the byte: ids come from the deliveries."""
    with InProcessWorker(app) as worker:
        with app.producer_or_acquire() as producer:
            for _ in range(3):
                producer.publish({"not": "a task"}, routing_key=app.conf.task_default_queue, serializer="json")
        assert worker.run() == 3
    assert len(Hardening.expect(app).dead_letters.find(Query(), limit=9).letters) == 3
