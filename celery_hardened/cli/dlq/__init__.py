"""``hardened dlq …``: look at dead letters and decide what becomes of them."""

from __future__ import annotations

import click

from celery_hardened.cli.dlq.discard import discard_letters
from celery_hardened.cli.dlq.list import list_letters
from celery_hardened.cli.dlq.move import export_letters, import_letters
from celery_hardened.cli.dlq.redrive import redrive_letters
from celery_hardened.cli.dlq.show import show_letter
from celery_hardened.cli.dlq.stats import show_stats
from celery_hardened.cli.exit_codes import ReportingGroup


@click.group(cls=ReportingGroup)
def dlq() -> None:
    """Dead letters: list, show, stats, redrive, discard, export, import."""


dlq.add_command(list_letters)
dlq.add_command(show_letter)
dlq.add_command(show_stats)
dlq.add_command(redrive_letters)
dlq.add_command(discard_letters)
dlq.add_command(export_letters)
dlq.add_command(import_letters)
