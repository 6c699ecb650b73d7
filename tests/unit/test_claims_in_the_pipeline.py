"""``@idempotent`` in a worker's pipeline: what a body may do, and what may come between two lines."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, chain
from celery.exceptions import Ignore

from celery_hardened import ConfigurationError, HardenedTask, Hardening, Query, idempotent
from celery_hardened.pipeline import claim as claim_module
from tests.support.in_process import InProcessWorker, outcomes
from tests.unit.conftest import MakeApp


def letters(app: Celery) -> list[tuple[str | None, str]]:
    page = Hardening.expect(app).dead_letters.find(Query())
    return [(stored.letter.task, stored.letter.error_type.rpartition(".")[2]) for stored in page.letters]


def held(app: Celery) -> int:
    return len(Hardening.expect(app).effects.renewals._held)


def test_a_swallowed_retry_is_the_retry(app: Celery) -> None:
    """The body catches what ``retry()`` raises and returns: that is no success, and the effect comes once."""
    ends: list[int] = []

    @app.task(bind=True, base=HardenedTask, name="swallows")
    @idempotent("order")
    def swallows(self: HardenedTask, order: str) -> str:
        if self.request.retries == 0:
            try:
                raise self.retry(countdown=0)
            except Exception:  # noqa: BLE001 - what careless bodies do
                return "caught"
        ends.append(self.request.retries)
        return "sent"

    with InProcessWorker(app) as worker, outcomes() as noted:
        result = swallows.delay("o-1")
        worker.run()
    assert noted == ["retry", "success"]
    assert (result.result, ends, letters(app), held(app)) == ("sent", [1], [], 0)


class OddError(Exception):
    """Raised where a result is encoded."""


class Unencodable:
    def __json__(self) -> Any:
        raise OddError


def test_a_result_that_cannot_be_encoded_is_still_a_success_of_its_work(make_hardened: MakeApp) -> None:
    """Whatever its encoding raises: the work is done, is marked, and is not done again."""
    app = make_hardened(task_ignore_result=True)
    runs: list[str] = []

    @app.task(base=HardenedTask, name="odd")
    @idempotent("order")
    def odd(order: str) -> Any:
        runs.append(order)
        return Unencodable()

    with InProcessWorker(app) as worker:
        odd.delay("o-1")
        odd.delay("o-1")
        worker.run()
    assert (runs, letters(app)) == (["o-1"], [])


def test_finished_work_without_a_result_backend(make_app: MakeApp) -> None:
    """Nobody can wait for the result, so that it was not kept is no failure of a duplicate."""
    from celery_hardened import harden

    app = harden(make_app(hardened_idempotency_result_max=0))
    app.conf.result_backend = None
    app.__dict__.pop("backend", None)
    runs: list[str] = []

    @app.task(base=HardenedTask, name="large")
    @idempotent("order")
    def large(order: str) -> str:
        runs.append(order)
        return "x" * 100

    with InProcessWorker(app) as worker:
        large.delay("o-1")
        large.delay("o-1")
        worker.run()
    assert (runs, letters(app)) == (["o-1"], [])


@pytest.mark.parametrize("at", ["hold", "policy"])
def test_nothing_that_comes_between_two_lines_keeps_a_key(
    app: Celery, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """A soft time limit may be raised anywhere, also before the claim is noted and while a failure is decided."""
    from celery.exceptions import SoftTimeLimitExceeded

    @app.task(base=HardenedTask, name="fails")
    @idempotent("order")
    def fails(order: str) -> None:
        raise ValueError("broken")

    def strike(*_: Any, **__: Any) -> Any:
        raise SoftTimeLimitExceeded

    renewals = Hardening.expect(app).effects.renewals
    if at == "hold":
        hold = renewals.hold

        def then_strike(*args: Any, **options: Any) -> Any:
            hold(*args, **options)
            strike()

        monkeypatch.setattr(renewals, "hold", then_strike)
    else:
        monkeypatch.setattr("celery_hardened.pipeline.execute.verdict_on", strike)
    with InProcessWorker(app) as worker:
        fails.delay("o-1")
        worker.run()
    store = Hardening.expect(app).effects.eager_claims
    key = claim_module.key_of(fails, ("o-1",), {})
    assert key is not None
    answer = store.claim(key, owner="next", task_id="t", fingerprint="", lease=1.0, lifetime=60.0)
    assert type(answer).__name__ == "Won", "the key is free at once"
    if at == "policy":
        assert held(app) == 0


def test_a_link_of_a_workflow_that_has_no_key_says_so_itself(app: Celery) -> None:
    """A result that is no key (NaN) fails the task that gets it, not the one that returned it."""

    @app.task(base=HardenedTask, name="head")
    def head() -> float:
        return float("nan")

    @app.task(base=HardenedTask, name="tail")
    @idempotent("number")
    def tail(number: float) -> None: ...

    with InProcessWorker(app) as worker:
        result = chain(head.s(), tail.s()).apply_async()
        worker.run()
        assert result.parent.state == "SUCCESS"
        assert result.state == "FAILURE"
    assert letters(app) == [("tail", "UnusableKeyError")]


def test_large_arguments_of_a_later_link(make_hardened: MakeApp) -> None:
    """An idempotent task whose arguments lie in the payload store runs in a chain as any other, once."""
    app = make_hardened(hardened_payload_store="memory:", hardened_payload_threshold=1024)
    runs: list[int] = []

    @app.task(base=HardenedTask, name="head")
    def head() -> str:
        return "o-1"

    @app.task(base=HardenedTask, name="tail")
    @idempotent("order")
    def tail(order: str, text: str) -> int:
        runs.append(len(text))
        return len(text)

    with InProcessWorker(app) as worker:
        results = [chain(head.s(), tail.s("x" * 5000)).apply_async() for _ in range(2)]
        worker.run()
        assert [result.result for result in results] == [5000, 5000]
    assert (runs, letters(app)) == ([5000], [])


def test_a_wait_is_bounded_from_its_first_moment(app: Celery) -> None:
    """A message that was due late, or stood in a long queue, may wait for its key as long as any other."""
    hardening = Hardening.expect(app)

    @app.task(base=HardenedTask, name="bounded", retry_for=600)
    @idempotent("order")
    def bounded(order: str) -> str:
        return "done"

    key = claim_module.key_of(bounded, ("o-1",), {})
    assert key is not None
    store = hardening.effects.eager_claims
    store.claim(key, owner="other", task_id="other", fingerprint="", lease=30.0, lifetime=600.0)
    long_ago = {"hardened": {"v": 1, "published": 1.0, "first_published": 1.0, "attempt": 0}}
    with InProcessWorker(app) as worker:
        bounded.apply_async(("o-1",), headers=long_ago, retries=1)
        worker.step()
        assert letters(app) == []
        store.release(key, owner="other")
        worker.run()
    assert letters(app) == []


def test_ended_work_answers_that_it_has_ended(app: Celery) -> None:
    """What the database store keeps of a body that raised ``Ignore`` is replayed as such."""
    from celery_hardened.pipeline.replay import ENDED

    runs: list[str] = []

    @app.task(base=HardenedTask, name="ends")
    @idempotent("order")
    def ends(order: str) -> None:
        runs.append(order)
        raise Ignore

    key = claim_module.key_of(ends, ("o-1",), {})
    assert key is not None
    store = Hardening.expect(app).effects.eager_claims
    store.claim(key, owner="other", task_id="other", fingerprint="", lease=30.0, lifetime=600.0)
    store.finish(key, owner="other", result=ENDED, lifetime=600.0)
    with InProcessWorker(app) as worker:
        ends.delay("o-1")
        worker.run()
        assert worker.unacked == 0
    assert (runs, letters(app)) == ([], [])


def test_a_countdown_that_finished_work_does_not_outlive_is_told_once(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    """Longer than ``eta=`` says: the producer's log says so, once for each task, and the task is sent."""

    @app.task(base=HardenedTask, name="late")
    @idempotent("order", eta=60)
    def late(order: str) -> None: ...

    for number, countdown in enumerate((30, 3600, 7200)):
        late.apply_async((str(number),), countdown=countdown)
    told = [record.getMessage() for record in caplog.records if "eta=" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("late: it is due in 3600 s")


@pytest.mark.parametrize("on_duplicate", ["wait", "skip", "raise"])
def test_a_redelivery_of_the_holders_message_always_comes_back(app: Celery, on_duplicate: Any, unique: str) -> None:
    """Its first run may be dying: skipped or refused, nothing would be left to run it."""
    # An id that no other test uses: results are kept for the whole process, and a success is never overwritten.
    runs: list[str] = []

    @app.task(base=HardenedTask, name="stubborn")
    @idempotent("order", on_duplicate=on_duplicate)
    def stubborn(order: str) -> str:
        runs.append(order)
        return "done"

    key = claim_module.key_of(stubborn, ("o-1",), {})
    assert key is not None
    store = Hardening.expect(app).effects.eager_claims
    store.claim(key, owner="first run", task_id=unique, fingerprint="", lease=30.0, lifetime=600.0)
    with InProcessWorker(app) as worker:
        result = stubborn.apply_async(("o-1",), task_id=unique)
        worker.step()
        assert (runs, letters(app)) == ([], [])
        store.release(key, owner="first run")
        worker.run()
        assert result.result == "done"
    assert runs == ["o-1"]


@pytest.mark.parametrize(
    ("retries", "steps"),
    [(1, ["claim", "release", "retry", "claim", "letter", "release"]), (0, ["claim", "letter", "release"])],
)
def test_the_order_at_a_failure(app: Celery, monkeypatch: pytest.MonkeyPatch, retries: int, steps: list[str]) -> None:
    """The key is free before the retry is published, or a quick one would wait for a lease; and the letter is
    written before the key is free, or a kill in between would leave neither."""
    hardening = Hardening.expect(app)
    seen: list[str] = []

    def spy(owner: Any, method: str, step: str) -> None:
        original = getattr(owner, method)

        def noted(*args: Any, **options: Any) -> Any:
            seen.append(step)
            return original(*args, **options)

        monkeypatch.setattr(owner, method, noted)

    spy(hardening.effects.eager_claims, "claim", "claim")
    spy(hardening.effects.eager_claims, "release", "release")
    spy(hardening.dead_letters, "put", "letter")

    @app.task(base=HardenedTask, name="fails", max_retries=retries)
    @idempotent("order")
    def fails(order: str) -> None:
        raise ConnectionError("gateway down")

    spy(fails, "retry_as_celery", "retry")
    with InProcessWorker(app) as worker:
        fails.delay("o-1")
        worker.run()
    assert seen == steps


def test_a_key_that_no_worker_would_serve_is_refused_at_the_publish(app: Celery) -> None:
    """Without a time limit nothing bounds a repetition, and a contained task cannot wait: the producer is told."""

    @app.task(base=HardenedTask, name="endless", time_limit=0, soft_time_limit=0)
    @idempotent("order")
    def endless(order: str) -> None: ...

    @app.task(name="contained")
    @idempotent("order")
    def contained(order: str) -> None: ...

    with pytest.raises(ConfigurationError, match="lifetime="):
        endless.delay("o-1")
    with pytest.raises(ConfigurationError, match="base=HardenedTask"):
        contained.delay("o-1")
