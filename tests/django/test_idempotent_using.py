"""The mark of ``store="database"`` commits with its effect, in the database the task names."""

from __future__ import annotations

import pytest
from celery import Celery
from celery.exceptions import Ignore

from celery_hardened import HardenedTask, Hardening, Query, idempotent
from celery_hardened.contrib.django.models import FinishedWork
from tests.support.django_shop.models import Invoice
from tests.support.in_process import InProcessWorker


@pytest.mark.parametrize("alias", ["default", "other"])
def test_effect_and_mark_are_in_one_database(app: Celery, alias: str) -> None:
    """A failure after the effect leaves neither, a success leaves both, and a repetition changes nothing."""
    FinishedWork.objects.using(alias).all().delete()

    @app.task(bind=True, base=HardenedTask, name=f"shop.bill.{alias}", max_retries=0)
    @idempotent("number", store="database", using=alias, compare_arguments=False)
    def bill(self: HardenedTask, number: str, breaks: bool = False) -> str:
        Invoice.objects.using(alias).create(number=number)
        if breaks:
            raise ValueError("after the effect")
        return number

    def there() -> tuple[int, int]:
        rows = (Invoice.objects.using(alias).filter(number="i-1"), FinishedWork.objects.using(alias).all())
        return rows[0].count(), rows[1].count()

    assert bill.apply(("i-1", True)).failed()
    assert there() == (0, 0)
    assert [bill.apply(("i-1",)).get() for _ in range(3)] == ["i-1"] * 3
    assert there() == (1, 1)
    FinishedWork.objects.using(alias).all().delete()


@pytest.mark.parametrize("ending", ["ignore", "replace"])
def test_what_a_body_did_before_it_ended_itself_stands(app: Celery, ending: str) -> None:
    """``Ignore`` and ``replace`` are no failures: effect and mark commit, and a repetition is ignored."""
    FinishedWork.objects.all().delete()

    @app.task(base=HardenedTask, name="shop.next")
    def follow(number: str) -> str:
        return number

    @app.task(bind=True, base=HardenedTask, name="shop.ends")
    @idempotent("number", store="database")
    def ends(self: HardenedTask, number: str) -> str:
        Invoice.objects.create(number=number)
        if ending == "ignore":
            raise Ignore
        raise self.replace(follow.s(number))

    with InProcessWorker(app) as worker:
        for _ in range(2):
            ends.delay("i-1")
        worker.run()
        assert worker.unacked == 0
    assert Invoice.objects.filter(number="i-1").count() == 1
    assert FinishedWork.objects.count() == 1
    assert Hardening.expect(app).dead_letters.count(Query()) == 0
    FinishedWork.objects.all().delete()


def test_a_swallowed_retry_commits_nothing(app: Celery) -> None:
    """The transaction is open until the run has ended: what was written before and after ``retry()`` is undone."""
    FinishedWork.objects.all().delete()

    @app.task(bind=True, base=HardenedTask, name="shop.swallows")
    @idempotent("number", store="database")
    def swallows(self: HardenedTask, number: str) -> str:
        Invoice.objects.create(number=number)
        if self.request.retries < 2:
            try:
                raise self.retry(countdown=0)
            except Exception:  # noqa: BLE001 - what careless bodies do
                Invoice.objects.create(number=number)
        return "done"

    with InProcessWorker(app) as worker:
        result = swallows.delay("i-1")
        worker.run()
        assert result.result == "done"
    assert Invoice.objects.filter(number="i-1").count() == 1
    FinishedWork.objects.all().delete()
