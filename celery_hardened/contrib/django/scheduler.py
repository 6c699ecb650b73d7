"""``celery -A proj beat -S hardened-django``: the schedules of django-celery-beat's tables."""

from __future__ import annotations

import logging

from celery_hardened.beat.source import Source
from celery_hardened.contrib.django.runs.collector import Collector
from celery_hardened.contrib.django.runs.source import RecordedSource
from celery_hardened.contrib.django.schedules.source import DatabaseSource
from celery_hardened.pipeline.beat import HardenedScheduler, policy_of
from celery_hardened.pipeline.run_reports import has_moments, is_on

logger = logging.getLogger("celery_hardened.beat")


class DatabaseScheduler(HardenedScheduler):
    """As ``HardenedScheduler``, with the rows of ``PeriodicTask`` for schedules and ``SchedulePolicy`` beside them.

    Raises:
        ImproperlyConfigured: ``INSTALLED_APPS`` lacks one of the two apps.
        ConfigurationError: The app was never hardened, or has no Redis to keep records in.
    """

    def source(self) -> Source:
        source = DatabaseSource(self.app, defaults=policy_of(self.hardening.settings))
        if not is_on(self.hardening):
            if not has_moments() and self.hardening.settings.run_history is not False:
                logger.warning("run history is not kept, as its moments need USE_TZ = True")
            return source
        return RecordedSource(source, Collector(self.hardening), self.app)
