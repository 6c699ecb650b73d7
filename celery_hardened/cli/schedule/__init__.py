"""``hardened schedule …``: see, fire, pause and preview what beats fire, and take it over from another scheduler."""

from __future__ import annotations

import click

from celery_hardened.cli.exit_codes import ReportingGroup
from celery_hardened.cli.schedule.adopt import adopt_schedules
from celery_hardened.cli.schedule.backfill import backfill_schedule
from celery_hardened.cli.schedule.history import show_history
from celery_hardened.cli.schedule.list import list_schedules
from celery_hardened.cli.schedule.next import next_slots
from celery_hardened.cli.schedule.pause import pause_schedules
from celery_hardened.cli.schedule.preview import preview_schedule
from celery_hardened.cli.schedule.resume import resume_schedules
from celery_hardened.cli.schedule.skip import skip_slots, unskip_slots
from celery_hardened.cli.schedule.trigger import trigger_schedules


@click.group(cls=ReportingGroup)
def schedule() -> None:
    """Schedules of beat: list, next, history, trigger, pause, resume, skip, unskip, backfill, preview, adopt."""


schedule.add_command(list_schedules)
schedule.add_command(next_slots)
schedule.add_command(show_history)
schedule.add_command(trigger_schedules)
schedule.add_command(pause_schedules)
schedule.add_command(resume_schedules)
schedule.add_command(skip_slots)
schedule.add_command(unskip_slots)
schedule.add_command(backfill_schedule)
schedule.add_command(preview_schedule)
schedule.add_command(adopt_schedules)
