"""What a worker does for everybody from time to time, and what it says when it stops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state

from celery_hardened import Hardening, StoreUnavailableError, harden
from celery_hardened.pipeline import upkeep
from celery_hardened.pipeline.upkeep import Upkeep, note_returns
from celery_hardened.poison.contract import Start
from celery_hardened.poison.policy import Record
from tests.unit.conftest import MakeApp


class Timer:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, Any]] = []
        self.cancelled: list[object] = []

    def call_repeatedly(self, seconds: float, fun: Any) -> object:
        self.asked.append((seconds, fun))
        return object()

    def cancel(self, entry: object) -> None:
        self.cancelled.append(entry)


def with_store(hardening: Hardening, **methods: Any) -> None:
    """Put a store with these methods into the app."""
    quiet = {"sweep": lambda: 0, "parked_groups": list}
    hardening.__dict__["dead_letters"] = SimpleNamespace(**{**quiet, **methods})


def test_chores_are_done_every_minute_once_a_connection(hardening: Hardening) -> None:
    """A reconnect takes the place of what was before, so they do not multiply."""
    timer, chores = Timer(), Upkeep(hardening)
    for _ in range(3):
        chores.start(timer)
    assert [seconds for seconds, _ in timer.asked] == [60.0] * 3
    assert len(timer.cancelled) == 2


def test_a_dry_run_does_no_chores(make_app: MakeApp) -> None:
    timer = Timer()
    Upkeep(Hardening.expect(harden(make_app(hardened_observe=True)))).start(timer)
    assert timer.asked == []


def test_a_round_sweeps_and_keeps_chords_alive(
    hardening: Hardening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each group once, for as long as letters are kept; letters that retention drops are told."""
    kept: list[tuple[set[str], float]] = []
    monkeypatch.setattr(upkeep, "keep_groups_alive", lambda app, groups, seconds: kept.append((groups, seconds)))
    with_store(hardening, sweep=lambda: 7, parked_groups=lambda: [("l1", "g1"), ("l2", "g1"), ("l3", "g2")])
    Upkeep(hardening).round()
    assert kept == [({"g1", "g2"}, hardening.settings.dead_letter_max_age)]
    assert "retention dropped 7 dead letters" in caplog.text


@pytest.mark.parametrize(
    "error", [StoreUnavailableError("sweeping", "refused"), KeyError("k"), OSError(), ValueError()]
)
@pytest.mark.parametrize("step", ["sweep", "parked_groups"])
def test_a_round_never_raises(
    hardening: Hardening, caplog: pytest.LogCaptureFixture, step: str, error: Exception
) -> None:
    """In a worker's timer a KeyError is taken for a lost broker, and the worker reconnects for ever."""

    def fail() -> None:
        raise error

    with_store(hardening, **{step: fail})
    Upkeep(hardening).round()
    assert "upkeep" in caplog.text


# --- graceful returns ---------------------------------------------------------------------------------------


class Request:
    """A request as a worker holds it."""

    def __init__(self, name: str, *, acknowledged: bool = False, acks_late: bool = True) -> None:
        self.start = Start("w", name, f"token {name}")
        self.acknowledged = acknowledged
        self.task = SimpleNamespace(acks_late=acks_late)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the worker has taken on, in place of Celery's own set."""
    requests: list[Any] = []
    monkeypatch.setattr(state, "reserved_requests", requests)
    return requests


def test_every_message_that_goes_back_is_noted(hardening: Hardening, held: list[Any]) -> None:
    """Prefetched, running and cut short by a cold shutdown; not what is acked already or acks early."""
    both = Request("held and cut short")
    held += [
        Request("prefetched"),
        both,
        Request("done", acknowledged=True),
        Request("early", acks_late=False),
        object(),  # a request of a task that is not ours
    ]
    hardening.cut_short += [both, Request("cut short")]

    assert note_returns(hardening) == 3

    for name, explained in {
        "prefetched": True,
        "held and cut short": True,
        "cut short": True,
        "done": False,
        "early": False,
    }.items():
        # A return is noted for its work and its task id.
        found = hardening.deaths.open_start(Start("w", name, f"again {name}"), redelivered=True, alone=False)
        hardening.deaths.close_start(Start("w", name, f"again {name}"), finished=True)
        assert (found == Record()) is explained, name


def test_a_store_that_is_down_does_not_hold_up_a_shutdown(
    hardening: Hardening, held: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, because those messages may now count as deaths."""

    def refuse(start: Start) -> None:
        raise StoreUnavailableError("recording a return", "refused")

    hardening.__dict__["deaths"] = SimpleNamespace(record_return=refuse)
    held.append(Request("prefetched"))
    assert note_returns(hardening) == 1
    assert "1 returned messages are not noted" in caplog.text


def test_a_dry_run_notes_nothing(make_app: MakeApp, held: list[Any]) -> None:
    hardening = Hardening.expect(harden(make_app(hardened_observe=True)))
    hardening.__dict__["deaths"] = None
    held.append(Request("prefetched"))
    assert note_returns(hardening) == 0
