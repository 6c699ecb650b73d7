"""Rules of ``check --deploy``: what is right on a laptop and in tests, and wrong in production. Connects to nothing."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.checks import CheckMessage, Error, Warning

from celery_hardened.contrib.django.checks.databases import unhealthy
from celery_hardened.contrib.django.checks.project import Project, Rule, page
from celery_hardened.errors import ConfigurationError

_REDIS = ("redis:", "rediss:", "sentinel:", "redis+socket:")


def observing(project: Project) -> Iterator[CheckMessage]:
    """W014."""
    if project.hardening is not None and project.settings.observe:
        yield Warning(
            "hardened_observe is on: it is logged what would have been done, and nothing is.",
            hint=f"Remove CELERY_HARDENED_OBSERVE when you have seen enough. {page('Adopt it in a running company')}",
            id="celery_hardened.W014",
        )


def runs_in_workers(project: Project) -> Iterator[CheckMessage]:
    """W015."""
    if project.conf.task_always_eager:
        yield Warning(
            "CELERY_TASK_ALWAYS_EAGER is on: tasks run in the process that publishes them, inside its request and its "
            "transaction; no broker, no worker, no dead letter that outlives the process.",
            hint=f"Set it in the settings of tests alone. {page('Test your tasks')}",
            id="celery_hardened.W015",
        )


def letters_are_kept(project: Project) -> Iterator[CheckMessage]:
    """W016."""
    if project.hardening is not None and project.settings.dead_letter_store == "memory":
        yield Warning(
            "hardened_dead_letter_store is 'memory': a dead letter is lost with the process that wrote it, and nobody "
            "else can see it.",
            hint=(
                "Set CELERY_HARDENED_DEAD_LETTER_STORE to 'redis' or 'django'. "
                + page("Keep dead letters in your database")
            ),
            id="celery_hardened.W016",
        )


def chords_are_parked(project: Project) -> Iterator[CheckMessage]:
    """W013."""
    backend = str(project.conf.result_backend or "")
    scheme = backend.partition("//")[0]
    if project.hardening is None or not backend or scheme.startswith("disabled") or not project.settings.park_chords:
        return
    if not scheme.startswith(_REDIS) and scheme not in ("redis", "rediss", "sentinel"):
        yield Warning(
            f"The result backend is {scheme.rstrip(':')!r}. Where a member of a chord becomes a dead letter, its chord "
            f"fails at once; only on a Redis result backend it is kept open, so that a redrive completes it.",
            hint=(
                "Keep results in Redis if you use chords; otherwise set CELERY_HARDENED_PARK_CHORDS = False. "
                + page("Compatibility")
            ),
            id="celery_hardened.W013",
        )


def tasks_are_right(project: Project) -> Iterator[CheckMessage]:
    """E009. Imports the modules of tasks, as a worker does at its start."""
    hardening = project.hardening
    if hardening is None or isinstance(project.read, ConfigurationError):
        return
    from celery_hardened.pipeline.claim import check_idempotent, open_claims
    from celery_hardened.pipeline.retry import policy_of

    hint = f"No worker of this app starts with it. {page('Task attributes')}"
    try:
        project.app.loader.import_default_modules()
    except Exception as problem:  # noqa: BLE001 - a module of the project may raise anything
        said = f"The modules of tasks cannot be imported: {type(problem).__name__}: {problem}"
        yield Error(said, hint=hint, id="celery_hardened.E009")
        return
    for name, task in sorted(project.app.tasks.items()):
        try:
            if getattr(task, "is_hardened", False) and not project.settings.observe:
                policy_of(task, hardening)
            check_idempotent(task, hardening)
            open_claims(task, hardening)
        except ConfigurationError as problem:
            yield Error(f"Task {name!r} is refused: {problem}", hint=hint, id="celery_hardened.E009")


RULES: tuple[Rule, ...] = (
    observing,
    runs_in_workers,
    letters_are_kept,
    chords_are_parked,
    unhealthy,
    tasks_are_right,
)
