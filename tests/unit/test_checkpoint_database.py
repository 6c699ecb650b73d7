"""Checkpoints beside ``store="database"``: a position must not stand where its rows are rolled back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import pytest
from celery import Celery

from celery_hardened import CheckpointError, HardenedTask, Hardening, Query, idempotent
from tests.support.in_process import InProcessWorker
from tests.support.sqlalchemy_shop import Invoice, Shop
from tests.unit.conftest import MakeApp

Task: TypeAlias = Any


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    shop = Shop(str(tmp_path / "shop.sqlite3"))
    shop.create()
    module = ModuleType("checkpoint_shop")
    module.sessions = shop.sessions  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "checkpoint_shop", module)
    yield shop
    shop.engine.dispose()


@pytest.fixture
def app(make_hardened: MakeApp, shop: Shop) -> Celery:
    return make_hardened(
        hardened_database="checkpoint_shop:sessions", hardened_retry_backoff=0.01, hardened_retry_floor=0.0
    )


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("every", [0, 3600])
def test_no_row_is_lost(app: Celery, shop: Shop, every: float, eager: bool) -> None:
    """
    Ten rows in the transaction of the key, the sixth of which fails once: the retry must not go on behind the rows
    that were rolled back. It is refused, before the first row, and the letter says why.
    """
    seen: list[int] = []

    @app.task(bind=True, base=HardenedTask, name="shop.book", shared=False)
    @idempotent("order", store="database")
    def book(self: Task, order: str) -> str:
        for row in self.checkpoint.iterate(range(10), every=every):
            seen.append(row)
            if row == 6 and seen.count(6) == 1:
                raise ConnectionError("once")
            self.execution.session.add(Invoice(number=f"{order}-{row}"))
        return "done"

    if eager:
        assert isinstance(book.apply(["o"]).result, CheckpointError)
    else:
        with InProcessWorker(app) as worker:
            book.delay("o")
            worker.run()
    assert (seen, shop.effects("o-")) == ([], [])
    if not eager:
        [stored] = Hardening.expect(app).dead_letters.find(Query(), limit=2).letters
        assert stored.letter.reason == "permanent"
        assert "store='database'" in stored.letter.error_message


@pytest.mark.parametrize("eager", [True, False])
def test_no_state_is_saved(app: Celery, shop: Shop, eager: bool) -> None:
    """The same for a state of one's own; one that is caught has changed nothing."""
    seen: list[Any] = []

    @app.task(bind=True, base=HardenedTask, name="shop.book", shared=False)
    @idempotent("order", store="database")
    def book(self: Task, order: str) -> str:
        seen.append(self.checkpoint.load("start"))
        with pytest.raises(CheckpointError, match="store='database'"):
            self.checkpoint.save("ahead")
        self.execution.session.add(Invoice(number=f"{order}-{len(seen)}"))
        if len(seen) == 1:
            raise ConnectionError("once")
        return "done"

    if eager:
        assert book.apply(["o"]).result == "done"
    else:
        with InProcessWorker(app) as worker:
            result = book.delay("o")
            worker.run()
            assert result.result == "done"
    assert seen == ["start", "start"]
    assert shop.effects("o-") == ["2"]
