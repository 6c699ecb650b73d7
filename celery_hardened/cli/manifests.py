"""``hardened manifests``: what Kubernetes has to know, with this app's names, queues and limits."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from celery_hardened.cli import output
from celery_hardened.cli.app_facts import broker_kind, hard_limits
from celery_hardened.cli.connect import hardening_of
from celery_hardened.cli.exit_codes import CommandError, ExitCode, ReportingCommand
from celery_hardened.kubernetes.plan import MARGIN, grace_for, slug
from celery_hardened.pipeline.queue_names import queue_names
from celery_hardened.preset import set_by_user

#: Names in one hint.
_NAMED = 5

#: Schedulers of ours, as ``celery beat -S`` knows them.
_BY_NAME = ("hardened", "hardened-django")


@click.command("manifests", cls=ReportingCommand)
@click.option("--image", help="Image of the app. Default: <name>:latest.")
@click.option("--name", help="First part of every object's name. Default: the app's.")
@click.option("--namespace", default="default", show_default=True, help="Namespace of every object.")
@click.option(
    "--queues",
    multiple=True,
    metavar="QUEUE,...",
    help="Queues of one Deployment of workers; give it again for another one. Default: one for all queues of the app.",
)
@click.option("--concurrency", default=4, show_default=True, type=click.IntRange(1), help="Places in a worker's pool.")
@click.option(
    "--grace",
    type=click.IntRange(1),
    metavar="SECONDS",
    help=f"What a worker may take to end. Default: the longest hard time limit of the app's tasks, and {MARGIN}.",
)
@click.option(
    "--autoscaler",
    type=click.Choice(["keda", "hpa", "none"]),
    default="keda",
    show_default=True,
    help="What starts more workers: KEDA, or Kubernetes by itself with Prometheus Adapter.",
)
@click.option("--min", "least", default=1, show_default=True, help="Workers there are at least; 0 needs KEDA.")
@click.option("--max", "most", default=20, show_default=True, help="Workers there are at most.")
@click.option(
    "--target-age",
    default=30,
    show_default=True,
    type=click.IntRange(1),
    metavar="SECONDS",
    help="What the oldest message may wait before more workers are started.",
)
@click.option(
    "--scraping",
    type=click.Choice(["podmonitor", "annotations"]),
    default="podmonitor",
    show_default=True,
    help="How Prometheus finds the pods: by its operator, or by their annotations.",
)
@click.option(
    "--prometheus",
    default="http://prometheus-operated.monitoring:9090",
    show_default=True,
    metavar="URL",
    help="Where KEDA asks.",
)
@click.pass_context
def manifests(
    ctx: click.Context,
    /,
    image: str | None,
    name: str | None,
    queues: tuple[str, ...],
    grace: int | None,
    **more: Any,
) -> None:
    """Print manifests for Kubernetes: workers, two beats, an exporter, probes, scraping, scaling.

    Nothing is connected to. Read them, change what your cluster needs, and apply them:
    celery -A proj hardened manifests --image … | kubectl apply -f -
    """
    from celery_hardened.kubernetes.manifests import manifests as written
    from celery_hardened.kubernetes.plan import Plan

    hardening = hardening_of(ctx)
    app = hardening.app
    limits = dict(hard_limits(app))
    longest = grace_for(limits.values() or [hardening.settings.time_limit])
    unbounded = sorted(task for task, limit in limits.items() if limit is None)
    name = slug(name or app.main or "celery")
    plan = Plan(
        name=name,
        module=_module(app),
        image=image or f"{name}:latest",
        groups=tuple(tuple(filter(None, map(str.strip, group.split(",")))) for group in queues) or (queue_names(app),),
        grace=grace or longest,
        stall=hardening.settings.health_stall,
        scheduler=_scheduler(app),
        ages=broker_kind(app) == "redis",
        **more,
    )
    click.echo(written(plan), nl=False)
    if plan.grace < longest:
        output.note(
            f"--grace {plan.grace} is less than the longest time limit and {MARGIN} s, {longest} s: tasks that run "
            "longer are killed with their worker, and start again elsewhere."
        )
    if unbounded:
        named = ", ".join(unbounded[:_NAMED]) + (f" and {len(unbounded) - _NAMED} more" * (len(unbounded) > _NAMED))
        output.note(
            f"No hard time limit: {named}. A worker that ends waits {plan.grace} s for them; what runs longer is "
            "killed and starts again elsewhere. Give them one, or say --grace."
        )


def _scheduler(app: Any) -> str:
    """The scheduler of the beats: that of ``beat_scheduler`` if it is one of ours, else ``hardened``.

    The word on the command line comes before the setting, so it has to be the right one.
    """
    from celery_hardened.cli.schedule.schedules import ours, scheduler_of

    wanted = scheduler_of(app)
    named = wanted if isinstance(wanted, str) else f"{wanted.__module__}:{wanted.__qualname__}"
    if named in _BY_NAME:  # a module of Django's is not imported here, where Django may not be set up
        return named
    try:
        if ours(wanted) is not None:
            return named
    except Exception as problem:  # noqa: BLE001 - whatever its module raises, the rest can be printed
        output.note(f"beat_scheduler is {named!r}, which cannot be imported: {type(problem).__name__}: {problem}.")
    if set_by_user(app.conf, "beat_scheduler"):
        output.note(
            f"beat_scheduler is {named!r}, which is no scheduler of celery_hardened's. The beats are printed with "
            "--scheduler hardened, which fires beat_schedule and nothing else."
        )
    return "hardened"


def _module(app: Any) -> str:
    """What ``-A`` was given, which Celery turns into the app and forgets."""
    words = sys.argv[1:]
    for word, after in zip(words, [*words[1:], ""], strict=False):  # none, where it is not called as a command
        if word in ("-A", "--app"):
            return after
        if word.startswith("--app="):
            return word.partition("=")[2]
        if word.startswith("-A"):
            return word[2:]
    module = os.environ.get("APP") or app.main
    if not module:
        raise CommandError("name the app: celery -A <module> hardened manifests", ExitCode.USAGE)
    return str(module)
