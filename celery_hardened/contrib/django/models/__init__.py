"""Tables in the project's own database."""

from celery_hardened.contrib.django.models.bulk_action import BulkAction, BulkActionLetter
from celery_hardened.contrib.django.models.dead_letter import DeadLetterFence, DeadLetterRow, DeadLetterTotals
from celery_hardened.contrib.django.models.dead_letter_section import DeadLetter
from celery_hardened.contrib.django.models.finished_work import FinishedWork
from celery_hardened.contrib.django.models.overview_section import Overview
from celery_hardened.contrib.django.models.schedule_policy import (
    NO_LIMIT,
    POLICY_FIELDS,
    SchedulePolicy,
    policy_options,
)
from celery_hardened.contrib.django.models.schedule_run import KINDS, VERDICTS, ScheduleRun

__all__ = [
    "KINDS",
    "NO_LIMIT",
    "POLICY_FIELDS",
    "VERDICTS",
    "BulkAction",
    "BulkActionLetter",
    "DeadLetter",
    "DeadLetterFence",
    "DeadLetterRow",
    "DeadLetterTotals",
    "FinishedWork",
    "Overview",
    "SchedulePolicy",
    "ScheduleRun",
    "policy_options",
]
