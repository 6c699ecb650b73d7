"""``hardened alerts``: the rules for Prometheus, with this app's names, queues and limits."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import click

from celery_hardened.cli.app_facts import broker_kind, hard_limits
from celery_hardened.cli.connect import hardening_of
from celery_hardened.cli.exit_codes import CommandError, ExitCode, ReportingCommand
from celery_hardened.metrics.rules.terms import Thresholds

_DEFAULTS = Thresholds()
_SECONDS = click.FloatRange(min=0, min_open=True)
_COUNT = click.IntRange(min=1)


@click.command("alerts", cls=ReportingCommand)
@click.option(
    "--oldest-age",
    type=_SECONDS,
    metavar="SECONDS",
    help=f"A message may wait so long. Default: {_DEFAULTS.oldest_age:g}.",
)
@click.option(
    "--stalled",
    type=_SECONDS,
    metavar="SECONDS",
    help="A queue in which messages wait may go so long without one that ends. "
    f"Default: {_DEFAULTS.stalled:g}, or twice the longest time limit of the app's tasks.",
)
@click.option(
    "--drain",
    type=_SECONDS,
    metavar="SECONDS",
    help=f"What waits in a growing queue may take so long to be done. Default: {_DEFAULTS.drain:g}.",
)
@click.option(
    "--failure-ratio",
    type=click.FloatRange(0, 1),
    metavar="RATIO",
    help=f"So much of a task's runs may fail, of 1. Default: {_DEFAULTS.failure_ratio:g}.",
)
@click.option(
    "--min-volume",
    type=_COUNT,
    help=f"A ratio of fewer runs, or a drain time of fewer messages, says nothing. Default: {_DEFAULTS.min_volume}.",
)
@click.option(
    "--timeouts",
    type=_COUNT,
    help=f"So many time-outs of a task in 15 minutes are told. Default: {_DEFAULTS.timeouts}.",
)
@click.option(
    "--worker-lost",
    type=_COUNT,
    help=f"So many processes that died in a task in 15 minutes are told. Default: {_DEFAULTS.worker_lost}.",
)
@click.option(
    "--stuck",
    type=_SECONDS,
    metavar="SECONDS",
    help=f"A run may take so long. Default: {_DEFAULTS.stuck:g}, or twice the longest time limit of the app's tasks.",
)
@click.option(
    "--letter-age",
    type=_SECONDS,
    metavar="SECONDS",
    help=f"A dead letter may lie open so long. Default: {_DEFAULTS.letter_age:g}.",
)
@click.option(
    "--beat-silent",
    type=_SECONDS,
    metavar="SECONDS",
    help=f"Beat may give no sign of life for so long. Default: {_DEFAULTS.beat_silent:g}.",
)
@click.option(
    "--stale",
    type=_SECONDS,
    metavar="SECONDS",
    help=f"Queues may go unseen, and a worker's main loop unturned, for so long. Default: {_DEFAULTS.stale:g}.",
)
@click.option(
    "--selector",
    default="",
    metavar="MATCHERS",
    help="Matchers that select the app's series, as in PromQL: 'namespace=\"prod\"'.",
)
@click.option(
    "--by",
    default="namespace",
    show_default=True,
    metavar="LABEL,...",
    help="Labels of targets that tell one installation from another; may be empty.",
)
@click.option(
    "--beat/--no-beat",
    default=None,
    help="Whether beat has to run. Default: whether the app has schedules, or keeps them in a database.",
)
@click.option(
    "--runbook",
    metavar="URL",
    help="Address of your copy of the page of alerts, for runbook_url. Default: no such annotation.",
)
@click.pass_context
def alerts(
    ctx: click.Context,
    /,
    selector: str,
    by: str,
    beat: bool | None,
    runbook: str | None,
    **given: float | None,
) -> None:
    """Print alerts for Prometheus, with the app's name, queues and limits in them.

    Nothing is connected to. Put what is printed where rule_files of Prometheus looks:
    celery -A proj hardened alerts > alerts.yml
    """
    from celery_hardened.metrics.rules.file import alerts_file
    from celery_hardened.metrics.rules.terms import Terms
    from celery_hardened.pipeline.queue_names import queue_names

    hardening = hardening_of(ctx)
    app = hardening.app
    longest = max((limit for _, limit in hard_limits(app) if limit), default=0.0)
    known = {name: value for name, value in given.items() if value is not None}
    asked = {field.name: known[field.name] for field in fields(Thresholds) if field.name in known}
    limits = replace(
        _DEFAULTS, **{name: max(getattr(_DEFAULTS, name), 2 * longest) for name in ("stalled", "stuck")} | asked
    )
    more: dict[str, Any] = {} if runbook is None else {"runbook": runbook}
    try:
        terms = Terms(
            limits,
            app=app.main or None,
            queues=queue_names(app),
            beat=_has_schedules(app) if beat is None else beat,
            broker=broker_kind(app),
            selector=selector,
            by=tuple(filter(None, map(str.strip, by.split(",")))),
            **more,
        )
    except ValueError as problem:
        raise CommandError(str(problem), ExitCode.USAGE) from None
    click.echo(alerts_file(terms), nl=False)


def _has_schedules(app: Any) -> bool:
    """Does somebody count on a beat? Schedules in a database may come at any time."""
    return bool(app.conf.beat_schedule) or "django" in str(app.conf.beat_scheduler)
