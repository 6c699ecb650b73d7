"""Publish on commit under Django's own test classes (H131), as a project's tests use them."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from celery import Celery
from django.db import transaction
from django.test import TestCase, TransactionTestCase

from celery_hardened.errors import NotSentError, PublishFailedError
from tests.support.django_shop.models import Invoice
from tests.support.queued import queued_ids


class _Shop:
    """Fixtures for test classes."""

    app: Celery
    charge: Any
    broken: list[str]

    @pytest.fixture(autouse=True)
    def shop(self, app: Celery, charge: Any) -> None:
        self.app, self.charge = app, charge

    def invoice(self) -> Any:
        """What a view does."""
        with transaction.atomic():
            return self.charge.delay(Invoice.objects.create(number="1").pk)


class TestInTestCase(_Shop, TestCase):  # type: ignore[misc]
    """Each test runs in a transaction that is never committed."""

    databases: ClassVar[set[str]] = {"default", "other"}

    def test_captured_callbacks_are_counted(self) -> None:
        """One callback a publish, and nothing is sent."""
        with self.captureOnCommitCallbacks() as callbacks:
            result = self.invoice()
            self.invoice()
        assert len(callbacks) == 2
        assert "shop.charge" in repr(callbacks[0])
        assert queued_ids(self.app) == []
        with pytest.raises(NotSentError) as refused:
            result.get(timeout=1)
        assert not refused.value.rolled_back

    def test_captured_callbacks_are_executed(self) -> None:
        """``captureOnCommitCallbacks(execute=True)`` sends what the code under test would have sent."""
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            result = self.invoice()
            assert queued_ids(self.app) == []
        assert len(callbacks) == 1
        assert queued_ids(self.app) == [result.id]
        callbacks[0]()
        assert queued_ids(self.app) == []  # called twice it is sent once

    def test_the_transaction_of_the_test_is_none_of_the_codes(self) -> None:
        """Code without ``atomic()`` sends at once in production, and so it does in a test."""
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            result = self.charge.delay(1)
            assert queued_ids(self.app) == [result.id]
        assert callbacks == []

    def test_only_the_database_of_the_block_has_to_be_captured(self) -> None:
        """The test's transaction on the other database does not hold the publish back."""
        capture = self.captureOnCommitCallbacks(using="other", execute=True)
        with capture as callbacks, transaction.atomic(using="other"):
            result = self.charge.delay(1)
        assert len(callbacks) == 1
        assert queued_ids(self.app) == [result.id]

    def test_a_savepoint_is_dropped_as_in_production(self) -> None:
        """What the code under test rolls back is not captured."""
        with self.captureOnCommitCallbacks(execute=True) as callbacks, transaction.atomic():
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                self.charge.delay("dropped")
                1 / 0  # noqa: B018
            kept = self.charge.delay("kept")
        assert len(callbacks) == 1
        assert queued_ids(self.app) == [kept.id]

    def test_durable_blocks(self) -> None:
        """``TestCase`` lets durable blocks be; a publish inside waits for them."""
        with self.captureOnCommitCallbacks(execute=True) as callbacks, transaction.atomic(durable=True):
            self.charge.delay(1)
        assert len(callbacks) == 1

    def test_eager(self) -> None:
        """Under ``task_always_eager`` tasks run at once: here nothing ever commits."""
        self.app.conf.task_always_eager = True
        assert self.invoice().get() == Invoice.objects.get().pk


class TestFailuresInTestCase(_Shop, TestCase):  # type: ignore[misc]
    """The broker is away."""

    @pytest.fixture(autouse=True)
    def away(self, broken: list[str]) -> None:
        self.broken = broken

    def test_an_executed_callback_raises(self) -> None:
        """No later callback is to be waited for: each is called by the test, which may call it alone."""
        with self.captureOnCommitCallbacks() as callbacks:
            self.invoice()
            self.invoice()
        for callback in callbacks:
            with pytest.raises(PublishFailedError):
                callback()


class TestInTransactionTestCase(_Shop, TransactionTestCase):  # type: ignore[misc]
    """Real transactions."""

    def test_the_commit_sends(self) -> None:
        """No capture needed."""
        result = self.invoice()
        assert queued_ids(self.app) == [result.id]
