"""``hardened dedup …``: which tasks hold a deduplication key, and how to free one."""

from __future__ import annotations

import click

from celery_hardened.cli.dedup.free import free_keys
from celery_hardened.cli.dedup.list import list_keys
from celery_hardened.cli.exit_codes import ReportingGroup


@click.group(cls=ReportingGroup)
def dedup() -> None:
    """Keys of @deduplicate: list, free."""


dedup.add_command(list_keys)
dedup.add_command(free_keys)
