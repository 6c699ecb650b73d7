"""The message of a redrive: faithful to the byte, its clock reset."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from kombu.utils import json as kombu_json

from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.dead_letter.resend import Edit, outgoing
from celery_hardened.errors import RedriveRefusedError
from celery_hardened.marks import Marks

BODY = b'[["i1"], {"amount": 3}, {"chord": null, "callbacks": null}]'


def letter(**fields: Any) -> DeadLetter:
    given: dict[str, Any] = {
        "id": "t-0-3",
        "reason": "exhausted",
        "task": "shop.charge",
        "task_id": "t",
        "queue": "billing",
        "exchange": "shop",
        "routing_key": "shop.charge",
        "body": BODY,
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": {
            "task": "shop.charge",
            "id": "t",
            "retries": 3,
            "eta": "2026-01-01T00:00:00+00:00",
            "expires": "2026-01-02T00:00:00+00:00",
            "group": "g",
            "stamps": {"tenant": "a"},
            "argsrepr": "('i1',)",
            "kwargsrepr": "{}",
            "x-own": [1],
            "hardened": {
                "v": 1,
                "published": 5.0,
                "first_published": 1.0,
                "first_failed": 2.0,
                "waited": 9.0,
                "deaths": 2,
                "key": "invoice-1",
                "correlation_id": "c",
                "slot": 3.0,
                "schedule": "nightly",
                "missed": 4,
                "run": "schedule:nightly",
                "once": True,
                "yields": True,
                "history": [[2.0, "w", "E"]],
            },
        },
        "properties": {"correlation_id": "t", "reply_to": "r", "priority": 7, "delivery_mode": 2, "expiration": "100"},
        "redrives": 1,
    }
    return DeadLetter(**{**given, **fields})


def send(of: DeadLetter, *, to_queue: str | None = None, edit: Edit | None = None) -> Any:
    return outgoing(of, token="token", now=100.0, to_queue=to_queue, edit=edit)


def test_what_is_the_users_stays() -> None:
    """Body, content type, ids, workflow, stamps, custom headers, priority."""
    before = letter()
    message = send(before)

    assert message.body == BODY
    assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")
    kept = ("task", "id", "group", "stamps", "argsrepr", "kwargsrepr", "x-own")
    assert {name: message.headers[name] for name in kept} == {name: before.headers[name] for name in kept}
    assert message.properties == {"correlation_id": "t", "reply_to": "r", "priority": 7, "delivery_mode": 2}


def test_what_would_stop_the_message_is_reset() -> None:
    """Retries, eta and expiry, the broker's own expiry too: or it is revoked the moment it arrives."""
    message = send(letter())
    assert (message.headers["retries"], message.headers["eta"], message.headers["expires"]) == (0, None, None)
    assert "expiration" not in message.properties


def test_the_marks_start_anew_and_say_whose_redrive_it_is() -> None:
    """A new horizon: published now, no failures, no deaths; the business key stays, and what fired it. It yields to
    no later run of its schedule: somebody wants it to run."""
    marks = Marks.read(send(letter()).headers)
    assert marks == Marks(
        published=100.0,
        first_published=100.0,
        redrives=2,
        redrive=("t-0-3", "token"),
        key="invoice-1",
        correlation_id="c",
        slot=3.0,
        schedule="nightly",
        missed=4,
        run="schedule:nightly",
        once=True,
    )


def test_the_letter_is_not_changed() -> None:
    """Its headers are shared with whoever shows it next."""
    before = letter()
    send(before, edit={"args": ["i2"]})
    assert before == letter()


def test_it_goes_to_its_queue_and_nowhere_else() -> None:
    """Through the default exchange: a topic exchange might copy it into other queues."""
    assert _place(send(letter())) == ("", "billing")
    assert _place(send(letter(), to_queue="slow")) == ("", "slow")
    assert _place(send(letter(queue=""))) == ("shop", "shop.charge")
    with pytest.raises(RedriveRefusedError, match="queue is not known"):
        send(letter(queue="", routing_key=""))


def _place(message: Any) -> tuple[str, str]:
    return message.exchange, message.routing_key


def test_a_message_of_protocol_1_is_reset_in_its_body() -> None:
    """It has no headers; what has to be reset is in the body, the rest of it stays."""
    body = {"task": "shop.charge", "id": "t", "args": ["i1"], "kwargs": {}, "retries": 2, "expires": "2020-01-01"}
    message = send(letter(headers={}, body=json.dumps(body).encode()))
    assert json.loads(message.body) == {**body, "retries": 0, "expires": None, "eta": None}
    assert set(message.headers) == {"hardened"}


@pytest.mark.parametrize(
    "body",
    [b'{ "task": "t", "id": "x",  "args": [], "kwargs": {}, "retries": 0 }', b"\x80pickle", b"[" * 100_000, b"5", b""],
)
def test_a_body_that_needs_no_reset_keeps_its_bytes(body: bytes) -> None:
    """Spaces, garbage, absurdities: nothing is rewritten for nothing."""
    assert send(letter(headers={}, body=body)).body == body


def test_a_foreign_message_gets_no_task_headers() -> None:
    """What has no ``task`` header is no task of protocol 2, and must not become half of one."""
    assert set(send(letter(headers={"own": 1})).headers) == {"own", "hardened"}


# --- editing -------------------------------------------------------------------------------------


def test_kwargs_are_laid_over_and_args_replaced() -> None:
    """The workflow part of the body stays; the headers that showed the old arguments go."""
    message = send(letter(), edit={"args": ["i2"], "kwargs": {"currency": "EUR"}})
    assert json.loads(message.body) == [
        ["i2"],
        {"amount": 3, "currency": "EUR"},
        {"chord": None, "callbacks": None},
    ]
    assert not {"argsrepr", "kwargsrepr"} & set(message.headers)


def test_a_function_edits_what_the_task_would_see() -> None:
    """Types that JSON has no word for arrive as such, and are written as Celery writes them."""
    tenant = UUID(int=5)
    body = kombu_json.dumps([["i1"], {"tenant": tenant}, {}]).encode()

    def edit(args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        assert kwargs == {"tenant": tenant}
        return [args[0].upper()], kwargs

    assert kombu_json.loads(send(letter(body=body), edit=edit).body) == [["I1"], {"tenant": tenant}, {}]


def test_protocol_1_can_be_edited() -> None:
    """Its arguments are in the body under their names."""
    body = b'{"task": "t", "id": "x", "args": ["i1"], "kwargs": {"a": 1}}'
    message = send(letter(headers={}, body=body), edit={"kwargs": {"a": 2}})
    assert json.loads(message.body) == {"task": "t", "id": "x", "args": ["i1"], "kwargs": {"a": 2}}


def _broken(_args: Any, _kwargs: Any) -> Any:
    raise LookupError("no such tenant")


@pytest.mark.parametrize(
    ("fields", "edit", "why"),
    [
        ({"content_type": "application/x-python-serialize"}, {"args": []}, "no JSON"),
        ({"body_compressed": True}, {"args": []}, "no JSON"),
        ({"body": b"nonsense"}, {"args": []}, "JSONDecodeError"),
        ({"body": b"5"}, {"args": []}, "TypeError"),
        ({}, _broken, "LookupError: no such tenant"),
        ({}, lambda _args, _kwargs: None, "TypeError"),
        ({"content_encoding": "klingon"}, {"args": []}, "LookupError"),
    ],
)
def test_what_cannot_be_edited_is_refused(fields: dict[str, Any], edit: Any, why: str) -> None:
    """One sentence with the reason; nothing half-edited goes out."""
    with pytest.raises(RedriveRefusedError, match=why):
        send(letter(**fields), edit=edit)
