"""``celery -A proj hardened …``: what operators do from a shell.

Celery finds the group through the entry point ``celery.commands`` and loads it
for every ``celery`` command, the worker's too. So rich is imported only where a
table is printed.
"""

from __future__ import annotations

import io
import sys
from typing import Any

import click
from celery.bin.base import handle_preload_options

from celery_hardened.cli.alerts import alerts
from celery_hardened.cli.dashboard import dashboard
from celery_hardened.cli.dedup import dedup
from celery_hardened.cli.dlq import dlq
from celery_hardened.cli.exit_codes import ReportingGroup
from celery_hardened.cli.exporter import exporter
from celery_hardened.cli.leader import leader
from celery_hardened.cli.manifests import manifests
from celery_hardened.cli.recover import recover
from celery_hardened.cli.schedule import schedule
from celery_hardened.cli.switch import switch

__all__ = ["hardened"]


@click.group(cls=ReportingGroup)
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]
def hardened(ctx: click.Context, **_preload: Any) -> None:
    """Dead letters, schedules, kill switches and deduplication keys of a hardened app.

    \b
    Exit codes:
      0    all of it was done
      1    something failed or was refused
      2    wrong usage or configuration
      3    no such letter or schedule
      4    the store did not answer
      130  Ctrl-C
    """
    # An app may add options to every sub-command (user_options["preload"]). Celery 5.7 takes
    # off those a command does not declare, 5.6 does not; the decorator hands them to the app.
    del ctx
    # Errors quote whatever a task said; a terminal that cannot show it must not end the command.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


hardened.add_command(dlq)
hardened.add_command(switch)
hardened.add_command(recover)
hardened.add_command(dedup)
hardened.add_command(leader)
hardened.add_command(exporter)
hardened.add_command(schedule)
hardened.add_command(manifests)
hardened.add_command(alerts)
hardened.add_command(dashboard)
