from __future__ import annotations

from django.db import models


class Invoice(models.Model):  # type: ignore[misc]
    """A row that a view or a task writes."""

    number = models.CharField(max_length=200, db_index=True)
    note = models.CharField(max_length=200, default="")


class Unique(models.Model):  # type: ignore[misc]
    """A row whose second insert fails: at the statement, or, on PostgreSQL, at the commit (``parent``)."""

    number = models.CharField(max_length=200, unique=True)
    parent = models.ForeignKey("self", null=True, on_delete=models.CASCADE)
