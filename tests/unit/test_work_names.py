"""Parent and pool process must name the work of a message alike, or deaths are written down where nobody looks."""

from __future__ import annotations

from typing import Any

import pytest

from celery_hardened import HardenedTask, Hardening
from tests.support.in_process import InProcessWorker
from tests.unit.conftest import MakeApp


@pytest.mark.parametrize(
    ("protocol", "sent_as"),
    [(2, "shop.charge"), (2, "shop.charge_as_it_was_named_before"), (1, "shop.charge")],
    ids=["plain", "alias", "protocol 1"],
)
def test_deaths_are_looked_for_where_they_are_recorded(
    make_hardened: MakeApp, monkeypatch: pytest.MonkeyPatch, protocol: int, sent_as: str
) -> None:
    """The same work under a second name of its task, and for a message without headers."""
    app = make_hardened(task_protocol=protocol)

    @app.task(base=HardenedTask, name="shop.charge")
    def charge() -> None: ...

    app.tasks["shop.charge_as_it_was_named_before"] = app.tasks["shop.charge"]
    deaths = Hardening.expect(app).deaths
    names: dict[str, list[str]] = {"looked for": [], "recorded": []}
    peek, open_start = deaths.peek, deaths.open_start

    def note_peek(work: str) -> Any:
        names["looked for"].append(work)
        return peek(work)

    def note_open_start(start: Any, **options: Any) -> Any:
        names["recorded"].append(start.work)
        return open_start(start, **options)

    monkeypatch.setattr(deaths, "peek", note_peek)
    monkeypatch.setattr(deaths, "open_start", note_open_start)
    with InProcessWorker(app) as worker:
        app.send_task(sent_as, headers={"hardened": {"v": 1, "deaths": 1}}, retries=1)
        worker.run()

    assert len(names["recorded"]) == 1
    assert names["recorded"] == names["looked for"]
