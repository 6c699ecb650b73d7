"""No message can end or wedge a worker: each becomes a dead letter, and the next task runs."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.letters import letters, publish_raw, task_headers
from tests.support.notes import notes
from tests.support.shop import SHOP
from tests.support.until import until

FINE = "proj.fine"
GOOD_BODY = json.dumps([["x"], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])


@dataclass(frozen=True)
class Case:
    """One message, and the letter it must become."""

    name: str
    reason: str
    body: bytes | str = GOOD_BODY
    headers: Callable[[], dict[str, Any]] = lambda: task_headers(FINE)
    content_type: str = "application/json"
    content_encoding: str = "utf-8"
    properties: dict[str, Any] = field(default_factory=dict)


def embed(**links: Any) -> str:
    return json.dumps([["x"], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None, **links}])


FAR = (datetime.now(timezone.utc) + timedelta(days=365 * 5)).isoformat()

CASES = [
    Case("unknown task", "unknown_task", headers=lambda: task_headers("proj.not_deployed_yet")),
    Case("no task header", "malformed", headers=dict),
    Case("no headers, no json", "undecodable", body=b"\xff\xfe{", headers=dict),
    Case("no id", "malformed", headers=lambda: task_headers(FINE, id=None)),
    Case("id is a number", "malformed", headers=lambda: task_headers(FINE, id=7)),
    Case("task is a list", "malformed", headers=lambda: task_headers(FINE, task=["a"])),
    Case("body of two parts", "malformed", body=json.dumps([["x"], {}])),
    Case("body is a number", "malformed", body="42"),
    Case("body is a string", "malformed", body='"abc"'),
    Case("body is empty", "malformed", body=""),
    Case("args are a mapping", "malformed", body=json.dumps([{"a": 1}, {}, {}])),
    Case("kwargs are a list", "malformed", body=json.dumps([[], ["a"], {}])),
    Case("embed is null", "malformed", body=json.dumps([[], {}, None])),
    Case("callbacks are a number", "malformed", body=embed(callbacks=5)),
    Case("chain is a string", "malformed", body=embed(chain="abc")),
    Case("chord is a number", "malformed", body=embed(chord=5)),
    Case("time limit is a word", "malformed", headers=lambda: task_headers(FINE, timelimit="soon")),
    Case("time limit of three", "malformed", headers=lambda: task_headers(FINE, timelimit=[1, 2, 3])),
    Case("time limit holds words", "malformed", headers=lambda: task_headers(FINE, timelimit=["a", None])),
    Case("retries is a word", "malformed", headers=lambda: task_headers(FINE, retries="many")),
    Case("eta is no time", "malformed", headers=lambda: task_headers(FINE, eta="tomorrow")),
    Case("eta in five years", "malformed", headers=lambda: task_headers(FINE, eta=FAR)),
    Case("eta of the year 9999", "malformed", headers=lambda: task_headers(FINE, eta="9999-12-31T23:59:59+00:00")),
    Case("expires is no time", "malformed", headers=lambda: task_headers(FINE, expires="never")),
    Case("stamps are a list", "malformed", headers=lambda: task_headers(FINE, stamps=[1], stamped_headers=["a"])),
    Case("broken json", "undecodable", body=b'[["x"], {'),
    Case("not utf-8", "undecodable", body=b'[["\xff"], {}, {}]'),
    Case(
        "pickle",
        "undecodable",
        body=b"\x80\x04K*.",
        content_type="application/x-python-serialize",
        content_encoding="binary",
    ),
    Case("unknown content type", "undecodable", content_type="application/x-nobody-knows"),
    Case(
        "compressed garbage",
        "undecodable",
        body=b"garbage",
        headers=lambda: task_headers(FINE, compression="application/x-gzip"),
    ),
    Case(
        "unknown compression",
        "undecodable",
        body=zlib.compress(GOOD_BODY.encode()),
        headers=lambda: task_headers(FINE, compression="application/x-rar"),
    ),
    Case("protocol 1 without id", "malformed", body=json.dumps({"task": FINE, "args": [], "kwargs": {}}), headers=dict),
    Case(
        "protocol 1 with odd args",
        "malformed",
        headers=dict,
        body=json.dumps({"task": FINE, "id": "p1", "args": 5, "kwargs": {}}),
    ),
    Case("wrong number of arguments", "permanent", body=json.dumps([[1, 2, 3, 4], {}, {}])),
]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_bad_messages_become_letters(
    pool: str,
    start_worker: StartWorker,
    load_project: LoadProject,
    broker: Broker,
    out: Path,
    subtests: pytest.Subtests,
) -> None:
    """
    Each row: one letter with its reason and the body as it was sent. Afterwards
    all slots of the worker are free, and the broker holds nothing of it.
    """
    worker = start_worker(SHOP, concurrency=2, pool=pool)
    project = load_project(SHOP)
    for case in CASES:
        publish_raw(
            broker,
            body=case.body,
            headers={**case.headers(), "row": case.name},
            content_type=case.content_type,
            content_encoding=case.content_encoding,
            **case.properties,
        )

    until(lambda: len(letters(project)) >= len(CASES), within=60, what=f"{len(CASES)} letters")
    by_row = {stored.letter.headers.get("row"): stored.letter for stored in letters(project)}
    for case in CASES:
        with subtests.test(case.name):
            letter = by_row[case.name]
            assert letter.reason == case.reason, letter.error_message
            body = case.body if isinstance(case.body, bytes) else case.body.encode()
            assert letter.body == body

    # Both slots at once: none was leaked.
    slow = [project.slow.delay(f"after-{n}", 1.0) for n in range(2)]
    assert [result.get(timeout=30) for result in slow] == ["after-0", "after-1"]
    assert worker.running
    assert len(letters(project)) == len(CASES)


def test_expired_and_revoked_are_recorded(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """An expired or revoked task is Celery's own recorded outcome: REVOKED, not started, no letter."""
    start_worker(SHOP)
    project = load_project(SHOP)
    expired = project.fine.apply_async(("late",), expires=-1)
    project.fine.delay("first").get(timeout=30)
    task_id = uuid4().hex
    assert project.app.control.revoke(task_id, reply=True, timeout=30, limit=1), "no worker has heard of it"
    revoked = project.slow.apply_async(("gone", 0), task_id=task_id)

    until(lambda: expired.state == "REVOKED", what="the expired task to be recorded")
    until(lambda: revoked.state == "REVOKED", what="the revoked task to be recorded")
    assert [line.split()[1] for line in notes(out, "starts")] == ["first"]
    assert letters(project) == []


def test_unknown_task_is_redriven_by_the_deploy_that_adds_it(
    start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """A rolling deploy loses nothing: the letter of an unknown task redrives once a worker knows it."""
    from celery_hardened import Hardening, Query

    old = start_worker(SHOP)
    project = load_project(SHOP)
    headers = task_headers("proj.added_later")
    publish_raw(broker, body=GOOD_BODY, headers=headers)
    until(lambda: len(letters(project, reason="unknown_task")) == 1, what="the letter of the unknown task")
    old.stop()

    added = SHOP + '\n\n@app.task(base=Shop)\ndef added_later(x):\n    note("added", x)\n'
    start_worker(added)
    hardening = Hardening.of(project.app)
    assert hardening is not None
    report = hardening.redrive(Query(reason="unknown_task"), by="test", why="deployed")
    assert report.sent == 1
    until(lambda: notes(out, "added") == ["x"], what="the task to run after the redrive")
    until(lambda: letters(project) == [], what="the letter to be closed")
