"""``harden(app)``: what it installs, in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import celery
import kombu
from celery import Celery, bootsteps, signals
from celery.app.registry import TaskRegistry
from celery.utils.imports import symbol_by_name

from celery_hardened.errors import ConfigurationError
from celery_hardened.hardening import Hardening, Level
from celery_hardened.logs.logger import tolerate_factories
from celery_hardened.pipeline.celery_lines import drop_celery_lines
from celery_hardened.pipeline.claim import check_idempotent, open_claims
from celery_hardened.pipeline.publish import stamp_publishes
from celery_hardened.pipeline.results import tell_unsent
from celery_hardened.pipeline.retry import policy_of
from celery_hardened.pipeline.send import harden_sending
from celery_hardened.pipeline.task_log import ours as task_logs_are_ours
from celery_hardened.preset import lay_app_wide
from celery_hardened.task import HardenedTask, on_leaf, without_celery_autoretry
from celery_hardened.transport.install import install as install_delivery

logger = logging.getLogger("celery_hardened")

AppT = TypeVar("AppT", bound=Celery)

#: Releases whose private names we lean on (docs/explanation/private-seams.md).
SUPPORTED = ((5, 6), (5, 7))


def harden(app: AppT, *, tasks: Level = "hardened") -> AppT:
    """Harden *app*. One call, before or after its configuration is read, before or after its tasks.

    Every task is *contained*: final failures, poison and bad input become dead letters.
    Tasks on ``HardenedTask`` are *hardened* besides: retries, late acks, time limits.
    It connects to nothing and needs no broker URL yet.

    Args:
        app: The Celery app. It is changed in place.

        tasks: ``"hardened"``: harden those on ``HardenedTask``. ``"all"``: harden every task of
            the app, whatever its base. Tasks named ``celery.*`` are never touched.

    Returns:
        The same app.

    Raises:
        ConfigurationError: Celery or kombu is of an unsupported release, or *tasks* is unknown,
            or ``tasks="all"`` comes after tasks were bound, when Celery's defaults can no longer
            be told from the user's settings.
    """
    _check_versions()
    if tasks not in ("hardened", "all"):
        raise ConfigurationError(f"harden(tasks={tasks!r}): it is 'hardened' or 'all'.")
    known = Hardening.of(app)
    if known is not None:
        if known.tasks != tasks:
            raise ConfigurationError(
                f"harden(app) was called with tasks={known.tasks!r} before and with tasks={tasks!r} now. Call it once."
            )
        return app

    hardening = Hardening(app, tasks=tasks)
    _refuse_late_all(app, tasks)
    hardening.attach()
    _lay_preset(hardening)
    stamp_publishes(app, settle=lambda: hardening.settings)
    harden_sending(app, hardening)
    tell_unsent(app)
    install_delivery(app, lambda: hardening.delivery)
    _adopt_tasks(hardening)
    _adopt_worker(hardening)
    _adopt_beat(hardening)
    tolerate_factories()
    drop_celery_lines()
    _survive_pickling(hardening)
    return app


def _survive_pickling(hardening: Hardening) -> None:
    """A spawned pool process gets the app by pickle, and must not get it without its hardening."""
    app, level = hardening.app, hardening.tasks
    reduce: Any = type(app).__reduce__
    app.__reduce__ = lambda: (_unpickle, (reduce(app), level))


def _unpickle(reduced: tuple[Callable[..., Celery], tuple[Any, ...]], level: Level) -> Celery:
    rebuild, args = reduced
    return harden(rebuild(*args), tasks=level)


def _check_versions() -> None:
    for package in (celery, kombu):
        found = tuple(package.VERSION[:2])
        if found not in SUPPORTED:
            raise ConfigurationError(
                f"{package.__name__} {package.__version__} is not supported: this release of celery_hardened "
                f"was proven on {' and '.join('.'.join(map(str, v)) for v in SUPPORTED)}. "
                f"Install one of those, or a newer celery_hardened."
            )


def _refuse_late_all(app: Celery, tasks: Level) -> None:
    bound = [name for name, task in app._tasks.items() if task.__bound__ and not name.startswith("celery.")]
    late = [name for name in bound if not isinstance(app._tasks[name], HardenedTask)]
    if tasks == "all" and late:
        raise ConfigurationError(
            f"harden(app, tasks='all') came after {len(late)} tasks were bound (such as {late[0]!r}), when "
            f"Celery's defaults can no longer be told from your settings. Call it right after the app is created."
        )


# --- configuration ----------------------------------------------------------------------------------


def _lay_preset(hardening: Hardening) -> None:
    """Whenever the configuration is read (laid earlier, it is lost); now too, if it was read already."""

    def on_after_configure(**_: Any) -> None:
        hardening.__dict__.pop("settings", None)
        _configure(hardening)

    hardening.app.on_after_configure.connect(on_after_configure, weak=False)
    if hardening.app.configured:
        _configure(hardening)


def _configure(hardening: Hardening) -> None:
    # Not hardening.settings: those are read once, and more of them may be set before they are used.
    if not hardening.app.conf.get("hardened_observe"):
        hardening.preset = lay_app_wide(hardening.app)


# --- tasks --------------------------------------------------------------------------------------------


def _adopt_tasks(hardening: Hardening) -> None:
    """Put a leaf on every task there is, and on every one that is registered later.

    The registry is the one place all of them pass: ``@app.task``, ``@shared_task``,
    ``register_task``, lazily or not, before and after ``finalize``.
    """
    app = hardening.app
    registry = app._tasks
    harden_all = hardening.tasks == "all"

    class HardenedRegistry(type(registry)):  # type: ignore[misc]
        def __setitem__(self, name: str, task: Any) -> None:
            on_leaf(task, app=app, harden_all=harden_all)
            super().__setitem__(name, task)

    HardenedRegistry.__name__ = TaskRegistry.__name__
    for task in list(registry.values()):
        on_leaf(task, app=app, harden_all=harden_all)
        if task.__bound__ and isinstance(task, HardenedTask):
            type(task).bind(app)
    registry.__class__ = HardenedRegistry


# --- worker -------------------------------------------------------------------------------------------


def _adopt_worker(hardening: Hardening) -> None:
    """Hook into the worker of this app, and of no other app in the process."""
    app = hardening.app

    class Adoption(bootsteps.Step):  # type: ignore[misc]
        """Runs before the worker makes its consumer.

        A bootstep, because what the receiver of a signal raises is logged, and the worker goes on.
        """

        def __init__(self, worker: Any, **options: Any) -> None:
            super().__init__(worker, **options)
            from celery_hardened.pipeline import stopping
            from celery_hardened.pipeline.attendance import attend_roll
            from celery_hardened.pipeline.consumer import compose_consumer
            from celery_hardened.pipeline.delivery import attend
            from celery_hardened.pipeline.gc_freeze import freeze_worker
            from celery_hardened.pipeline.serving import serve_worker
            from celery_hardened.pipeline.worker_metrics import count_worker

            # A mistake in a setting or a policy stops the worker here, not the first task that fails.
            hardening.prepare()
            for task in app.tasks.values():
                if getattr(task, "is_hardened", False) and not hardening.settings.observe:
                    without_celery_autoretry(task)
                    policy_of(task, hardening)
                check_idempotent(task, hardening)
                open_claims(task, hardening)
            worker.consumer_cls = compose_consumer(symbol_by_name(worker.consumer_cls))
            attend(hardening, worker)
            count_worker(hardening, worker)
            stopping.watch(worker)
            serve_worker(hardening, worker)
            attend_roll(hardening, worker)
            freeze_worker(hardening.settings, worker)

    def on_worker_ready(sender: Any, **_: Any) -> None:
        if sender.app is app:
            logger.info("%s", describe_changes(hardening))

    app.steps["worker"].add(Adoption)
    signals.worker_ready.connect(on_worker_ready, weak=False)


def _adopt_beat(hardening: Hardening) -> None:
    """Let each beat of this app answer for its metrics and health."""

    def on_beat_init(sender: Any, **_: Any) -> None:
        if sender.app is hardening.app:
            from celery_hardened.pipeline.serving import serve_beat

            serve_beat(hardening, sender)

    signals.beat_init.connect(on_beat_init, weak=False)


def describe_changes(hardening: Hardening) -> str:
    """The one line a worker logs at start: what we changed, and how many tasks are at which level."""
    ours = [task for name, task in hardening.app._tasks.items() if not name.startswith("celery.")]
    hardened = sum(1 for task in ours if getattr(task, "is_hardened", False))
    changed = ", ".join(f"{name}={_brief(value)}" for name, value in sorted(hardening.preset.items())) or "nothing"
    mode = "observing only: " if hardening.settings.observe else ""
    return (
        f"celery_hardened: {mode}{hardened} tasks hardened, {len(ours) - hardened} contained; app-wide settings "
        f"you had not set: {changed}; hardened tasks besides, where they do not say otherwise: "
        f"{_per_task(hardening)}; {_logs(hardening)}. "
        f"Every effect and its off switch: 'What changes on the day you add the line' in the documentation"
    )


def _per_task(hardening: Hardening) -> str:
    of = hardening.settings
    return (
        f"acks_late, reject_on_worker_lost, time limits {of.soft_time_limit}/{of.time_limit} s, "
        f"{of.max_retries} retries of transient errors"
    )


def _logs(hardening: Hardening) -> str:
    if not task_logs_are_ours(hardening):
        return "Celery's own lines about tasks"
    return "lines about tasks by celery_hardened.task in place of Celery's (hardened_task_logs)"


def _brief(value: Any) -> str:
    return "{" + ", ".join(f"{k}={v}" for k, v in value.items()) + "}" if isinstance(value, Mapping) else repr(value)
