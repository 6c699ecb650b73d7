from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery

from celery_hardened.dead_letter.contract import Query
from celery_hardened.errors import DeadLetterError, StoreUnavailableError
from celery_hardened.transport import recover
from celery_hardened.transport.recover import Found, OwnList
from tests.support.cli import answers, call, make_app, store_of


def own_list(consumer: str, *, messages: int = 1, live: bool = False) -> OwnList:
    key = f"hardened:delivery:fetching:{consumer}:shop"
    return OwnList(member=json.dumps([key, "shop"]), key=key, awaited="shop", messages=messages, live=live)


NOTHING = Found(own_lists=(), leased=(), delayed=(), malformed=0, consumers=0, lasts=0.0)

#: One message of each kind, and no worker.
LEFT = replace(
    NOTHING,
    own_lists=(own_list("dead", messages=2),),
    leased=("h1:dead:1", "h1:dead:2", "h1:dead:3"),
    delayed=("h1d:dead:4",),
    malformed=1,
)


class Stand:
    """Stands in for what looks into Redis; notes what it is told to do."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.did: list[tuple[str, Any]] = []
        self.items = [(f"h1:x:{number}", "shop", b"{oops") for number in range(found.malformed)]
        self.scripts = self
        self.failing: Exception | None = None

    def __call__(self, connection: Any, *, prefix: str) -> Stand:
        self.did = []
        return self

    def look(self) -> Found:
        return self.found

    def empty(self, own: OwnList, *, live: bool) -> int:
        self.did.append(("empty", own.key.split(":")[3]))
        return own.messages

    def put_back(self, tags: Sequence[str], *, started: bool) -> Iterator[int]:
        for tag in tags:
            if self.failing:
                raise self.failing
            self.did.append(("marked" if started else "unmarked", tag))
            yield 1

    def malformed(self, limit: int = 100) -> list[tuple[str, str, bytes]]:
        return self.items[:limit]

    def forget_malformed(self, tag: str) -> None:
        self.items = [item for item in self.items if item[0] != tag]


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    stand = Stand(LEFT)
    monkeypatch.setattr(recover, "Recovery", stand)
    return stand


def test_by_default_lists_are_emptied_and_items_buried(stand: Stand) -> None:
    """Without options nothing that a worker may still hold is touched; what stays is told."""
    app = make_app()
    result = call(app, "recover")
    assert result.exit_code == 0
    assert stand.did == [("empty", "dead")]
    assert stand.items == []
    (letter,) = [stored.letter for stored in store_of(app).find(Query()).letters]
    assert (letter.reason, letter.queue, letter.body) == ("malformed", "shop", b"{oops")
    rows = [line.split(None, 4) for line in result.stdout.splitlines()]
    assert rows[0] == ["PLACE", "FOUND", "MOVED", "LEFT", "THERE"]
    assert rows[1] == ["delayed", "messages", "1", "0", "1 wait for their time; --delayed takes them"]
    assert result.stdout.splitlines()[4].split() == ["malformed", "items", "1", "1", "-"]


def test_the_oldest_goes_back_last(stand: Stand) -> None:
    """What goes back last is taken first: delayed, then what was on its way, then what was leased, marked."""
    (record,) = answers(call(make_app(), "recover", "--leases", "--delayed", "--json"))
    assert [what for what, _ in stand.did] == ["unmarked", "empty", "marked", "marked", "marked"]
    assert record == {
        "delayed": {"found": 1, "selected": 1, "moved": 1},
        "own_lists": {"found": 2, "selected": 2, "moved": 2},
        "leases": {"found": 3, "selected": 3, "moved": 3},
        "malformed": {"found": 1, "selected": 1, "moved": 1},
        "problems": [],
        "dry_run": False,
    }


def test_a_dry_run_changes_nothing(stand: Stand) -> None:
    """``--dry-run`` counts what the same options would move."""
    result = call(make_app(), "recover", "--leases", "--dry-run")
    assert result.exit_code == 0
    assert (stand.did, len(stand.items)) == ([], 1)
    assert "WOULD MOVE" in result.stdout
    (record,) = answers(call(make_app(), "recover", "--leases", "--dry-run", "--json"))
    assert record["leases"] == {"found": 3, "selected": 3, "moved": 0}
    assert record["delayed"] == {"found": 1, "selected": 0, "moved": 0}


def test_lists_of_living_consumers_are_left_alone(stand: Stand) -> None:
    """A worker that waits may be about to take what lies there; ``--all`` says there is none."""
    stand.found = replace(NOTHING, own_lists=(own_list("dead"), own_list("busy", live=True)), consumers=1, lasts=9.0)
    result = call(make_app(), "recover")
    assert stand.did == [("empty", "dead")]
    assert "1 of consumers that seem to live; --all takes them" in result.stdout
    call(make_app(), "recover", "--all")
    assert stand.did == [("empty", "dead"), ("empty", "busy")]


def test_leases_of_living_workers_are_refused(stand: Stand) -> None:
    """``--leases`` beside a living worker would start its tasks twice: refused in a sentence, nothing is done."""
    stand.found = replace(LEFT, consumers=2, lasts=23.4)
    result = call(make_app(), "recover", "--leases", "--all")
    assert result.exit_code == 1
    assert "hardened workers seem to run" in result.stderr
    assert "has not run out: 2)" in result.stderr
    assert "wait 24 s" in result.stderr
    assert (stand.did, len(stand.items)) == ([], 1)
    assert call(make_app(), "recover", "--leases", "--force").exit_code == 0
    assert ("marked", "h1:dead:1") in stand.did


def test_force_alone_is_a_mistake(stand: Stand) -> None:
    """Whoever says ``--force`` without ``--leases`` means something else."""
    result = call(make_app(), "recover", "--force")
    assert result.exit_code == 2
    assert stand.did == []


def test_a_lost_server_leaves_an_account(stand: Stand) -> None:
    """The server goes away in the middle: exit code 4, what was done is told, and the same command goes on."""
    stand.failing = StoreUnavailableError("giving messages back", "gone")
    result = call(make_app(), "recover", "--leases", "--json")
    assert result.exit_code == 4
    assert answers(result)[0]["own_lists"]["moved"] == 2
    assert answers(result)[0]["leases"]["moved"] == 0
    assert "the same command goes on with the rest" in result.stderr


def test_ctrl_c_comes_between_steps(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C: the step under way is finished, the account is given, exit code 130."""

    def empty(own: OwnList, *, live: bool) -> int:
        signal.raise_signal(signal.SIGINT)
        return own.messages

    monkeypatch.setattr(stand, "empty", empty)
    result = call(make_app(), "recover", "--leases", "--json")
    assert result.exit_code == 130
    assert answers(result)[0]["own_lists"]["moved"] == 2
    assert stand.did == []


def test_an_item_that_cannot_be_buried_stays(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store refuses a letter: it is said, the item stays where it is, the others are buried."""
    stand.items = [("h1:x:1", "shop", b"first"), ("h1:x:2", "shop", b"second")]
    app = make_app()
    put = store_of(app).put

    def refuse(letter: Any) -> Any:
        if letter.body == b"first":
            raise DeadLetterError("too large")
        return put(letter)

    monkeypatch.setattr(store_of(app), "put", refuse)
    result = call(app, "recover", "--json")
    assert result.exit_code == 1
    assert [item[0] for item in stand.items] == ["h1:x:1"]
    assert answers(result)[0]["malformed"]["moved"] == 1
    assert "too large" in answers(result)[0]["problems"][0]


@pytest.mark.parametrize("delivery", ["hardened", "stock"])
def test_a_broker_that_is_no_redis(delivery: str) -> None:
    """Says why there is nothing to recover, and exits as for a wrong configuration."""
    result = call(make_app(hardened_redis_delivery=delivery), "recover")
    assert result.exit_code == 2
    assert "the broker (transport 'memory') is no Redis" in result.stderr
    assert "nothing to recover" in result.stderr


def test_an_app_that_is_not_hardened() -> None:
    """It has no key prefix to look under."""
    result = call(Celery("shop", broker="memory://", set_as_current=False), "recover")
    assert result.exit_code == 2
    assert "is not hardened" in result.stderr


def test_an_app_without_any_message(stand: Stand) -> None:
    """Nothing to do is not an error."""
    stand.found, stand.items = NOTHING, []
    result = call(make_app(), "recover", "--leases", "--delayed", "--all")
    assert result.exit_code == 0
    assert stand.did == []
