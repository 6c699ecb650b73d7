"""Tasks inline under Django's own test classes."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from celery import Celery
from django.db import transaction
from django.test import TestCase, TransactionTestCase

from celery_hardened.testing import inline


class TestInTestCase(TestCase):  # type: ignore[misc]
    """Each test runs in a transaction that is never committed."""

    databases: ClassVar[set[str]] = {"default", "other"}

    @pytest.fixture(autouse=True)
    def shop(self, app: Celery, charge: Any) -> None:
        self.app, self.charge = app, charge

    def test_at_once_by_default(self) -> None:
        with inline(self.app), transaction.atomic():
            assert self.charge.delay(1).get() == 1

    def test_captured_callbacks_run_the_task(self) -> None:
        """Outside of ``atomic()`` at once; inside when the test says that it commits."""
        with inline(self.app, await_commits=True):
            assert self.charge.delay(1).get() == 1
            with self.captureOnCommitCallbacks(execute=True) as callbacks, transaction.atomic():
                result = self.charge.delay(2)
                assert result.state == "PENDING"
            assert len(callbacks) == 1
            assert result.get() == 2


class TestInTransactionTestCase(TransactionTestCase):  # type: ignore[misc]
    """Transactions commit."""

    databases: ClassVar[set[str]] = {"default", "other"}

    @pytest.fixture(autouse=True)
    def shop(self, app: Celery, charge: Any) -> None:
        self.app, self.charge = app, charge

    def test_after_every_commit(self) -> None:
        """With two databases after the second; a savepoint's rollback drops it, and so does an error."""
        with inline(self.app, await_commits=True):
            with transaction.atomic():
                with transaction.atomic(using="other"):
                    both = self.charge.delay(1)
                assert both.state == "PENDING"
                with pytest.raises(KeyError), transaction.atomic():
                    dropped = self.charge.delay(2)
                    raise KeyError
            assert both.get() == 1
            assert dropped.state == "PENDING"
