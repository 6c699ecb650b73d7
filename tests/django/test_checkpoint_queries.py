"""Checkpoints over Django's queries, and beside its transactions."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from celery_hardened import HardenedTask, Hardening, Query
from celery_hardened.checkpoint.rows import rest_of
from tests.support.django_shop.models import Invoice
from tests.support.in_process import InProcessWorker


@pytest.fixture
def invoices() -> list[str]:
    numbers = [f"i{n}" for n in range(5)]
    Invoice.objects.bulk_create(Invoice(number=number) for number in numbers)
    return numbers


def test_a_query_goes_on_with_an_offset(invoices: list[str]) -> None:
    """The rows that are done are not read again."""
    with CaptureQueriesContext(connection) as queries:
        rest, total = rest_of(Invoice.objects.order_by("pk").values_list("number", flat=True), 3)
        assert list(rest) == invoices[3:]
    assert total is None
    assert "OFFSET 3" in queries[0]["sql"]
    assert len(queries) == 1


def test_a_query_without_an_order_is_refused(invoices: list[str]) -> None:
    """A database may give its rows in another order each time."""
    with pytest.raises(ValueError, match=r'add \.order_by\("pk"\)'):
        rest_of(Invoice.objects.all(), 0)


def test_a_job_over_a_query_resumes(app: Celery, invoices: list[str]) -> None:
    """Each row in a transaction of its own inside of the loop: what was rolled back comes again, nothing else."""

    @app.task(bind=True, base=HardenedTask, name="shop.stamp", shared=False)
    def stamp(self: Any) -> str:
        for invoice in self.checkpoint.iterate(Invoice.objects.order_by("pk"), every=0):
            with transaction.atomic():
                Invoice.objects.filter(pk=invoice.pk).update(note=invoice.note + "paid")
                if invoice.number == "i2" and not failed:
                    failed.append(invoice.number)
                    raise ConnectionError("once")
        return "done"

    failed: list[str] = []
    with InProcessWorker(app) as worker:
        result = stamp.delay()
        worker.run()
        assert result.result == "done"
    assert failed == ["i2"]
    assert set(Invoice.objects.values_list("note", flat=True)) == {"paid"}


def test_a_loop_inside_of_a_transaction_is_refused(app: Celery, invoices: list[str]) -> None:
    """Rolled back, the rows would be undone and the position not. Nothing is done, and the letter says why."""

    @app.task(bind=True, base=HardenedTask, name="shop.stamp", shared=False)
    def stamp(self: Any) -> None:
        with transaction.atomic():
            for invoice in self.checkpoint.iterate(Invoice.objects.order_by("pk")):
                Invoice.objects.filter(pk=invoice.pk).update(note="paid")

    with InProcessWorker(app) as worker:
        stamp.delay()
        worker.run()
    assert set(Invoice.objects.values_list("note", flat=True)) == {""}
    [stored] = Hardening.expect(app).dead_letters.find(Query(), limit=2).letters
    assert stored.letter.reason == "permanent"
    assert "after its transaction" in stored.letter.error_message
