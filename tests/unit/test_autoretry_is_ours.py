"""``autoretry_for`` is obeyed by our policy alone: Celery's own wrapper around ``run`` must not retry besides."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_hardened import HardenedTask, Hardening, Query, harden


class GatewayError(Exception):
    pass


@pytest.mark.parametrize("options", [{}, {"retry_backoff": 2}, {"retry_kwargs": {"max_retries": 3}}], ids=str)
@pytest.mark.parametrize("propagates", [False, True])
def test_eager_attempts_are_counted(options: dict[str, Any], propagates: bool) -> None:
    """A task that lists its error has as many eager attempts as it may have, then one letter and its own error."""
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(task_always_eager=True, task_eager_propagates=propagates)
    harden(app)
    tries = []

    @app.task(base=HardenedTask, bind=True, autoretry_for=(GatewayError,), max_retries=3, **options)  # type: ignore[misc]
    def charge(self: Any) -> None:
        tries.append(self.request.retries)
        raise GatewayError("no answer")

    if propagates:
        with pytest.raises(GatewayError):
            charge.delay()
    else:
        assert isinstance(charge.delay().result, GatewayError)

    assert tries == [0, 1, 2, 3]
    hardening = Hardening.of(app)
    assert hardening is not None
    assert [one.letter.reason for one in hardening.eager_dead_letters.find(Query()).letters] == ["exhausted"]
