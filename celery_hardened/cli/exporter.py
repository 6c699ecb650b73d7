"""``hardened exporter``: metrics of queues, dead letters and beats, from a process of its own."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

import click
from celery.bin.base import LOG_LEVEL

from celery_hardened.cli.connect import hardening_of
from celery_hardened.cli.exit_codes import CommandError, ExitCode, ReportingCommand


@click.command("exporter", cls=ReportingCommand)
@click.option(
    "--http",
    metavar="ADDRESS",
    help="Where to answer: a port, HOST:PORT or [IPV6]:PORT. By default $HARDENED_HTTP, hardened_http, or 9810.",
)
@click.option("--queues", "-Q", default="", metavar="A,B", help="Further queues, where the app does not name them.")
@click.option(
    "--every", type=click.FloatRange(min=0.5), default=5.0, show_default=True, help="Seconds between two readings."
)
@click.option("--loglevel", "-l", default="INFO", type=LOG_LEVEL, show_default=True, help="Lines of the log to show.")
@click.pass_context
def exporter(ctx: click.Context, http: str | None, queues: str, every: float, loglevel: Any) -> None:
    """Tell Prometheus how the queues, dead letters and beats are, until SIGTERM or Ctrl-C.

    It needs no worker, and runs no task. Queues are those that the app declares, that its tasks and schedules
    are routed to, and --queues.
    """
    from celery_hardened.metrics.address import Address
    from celery_hardened.pipeline.exporter import run_exporter

    hardening = hardening_of(ctx)
    address = None if http is None else Address.parse(http, named="--http")
    if not hardening.settings.metrics:
        raise CommandError("hardened_metrics is False: there is nothing to tell.", ExitCode.USAGE)
    hardening.app.log.setup(loglevel=loglevel, redirect_stdouts=False)
    stop = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        run_exporter(
            hardening,
            stop=stop,
            address=address,
            queues=[name for one in queues.split(",") if (name := one.strip())],
            every=every,
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
