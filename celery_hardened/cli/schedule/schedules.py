"""The schedules that a command is about: those of the scheduler in use, read without running it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from celery_hardened.cli.connect import hardening_of
from celery_hardened.cli.exit_codes import CommandError, ExitCode
from celery_hardened.errors import HardenedError, NotFiredError
from celery_hardened.hardening import Hardening

if TYPE_CHECKING:
    from celery_hardened.beat.schedule import Schedule
    from celery_hardened.beat.source import Source
    from celery_hardened.beat.store import BeatStore
    from celery_hardened.pipeline.beat import HardenedScheduler

scheduler_option = click.option(
    "--scheduler",
    metavar="NAME",
    help="hardened, hardened-django or the path of a class. By default what beat_scheduler says, else hardened.",
)
names_argument = click.argument("names", nargs=-1, metavar="NAME...", required=True)

#: Schedulers of others whose schedules one of ours reads.
_AS_OURS = {
    "django": "hardened-django",
    "django_celery_beat.schedulers:DatabaseScheduler": "hardened-django",
    "django_celery_beat.schedulers.DatabaseScheduler": "hardened-django",
}


@dataclass(frozen=True, slots=True)
class Known:
    """What the source of the schedules says, in its order."""

    hardening: Hardening
    schedules: Mapping[str, Schedule]
    """Also those that are well-formed, and are not fired all the same: see *problems*."""

    problems: Mapping[str, str]

    @property
    def names(self) -> list[str]:
        return [*self.schedules, *(name for name in self.problems if name not in self.schedules)]

    def require(self, names: Iterable[str], *, also: Iterable[str] = ()) -> None:
        """Refuse names that no schedule has.

        Raises:
            CommandError: Exit code 3.
        """
        known = {*self.names, *also}
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                guess = f" Did you mean {near[0]!r}?" if near else " `hardened schedule list` lists them."
                raise CommandError(f"there is no schedule {name!r}.{guess}", ExitCode.NOT_FOUND)

    def usable(self, name: str) -> Schedule:
        """The schedule of that name.

        Raises:
            CommandError: There is none (exit code 3), or it cannot be used.
        """
        self.require([name])
        if name in self.problems:
            raise CommandError(f"schedule {name!r} cannot be used: {self.problems[name]}")
        return self.schedules[name]


def read(ctx: click.Context, scheduler: str | None) -> Known:
    """Read the schedules as a beat would. Nothing is started or written.

    Raises:
        CommandError: There is no such scheduler, or its schedules cannot be read.
    """
    from celery_hardened.beat.schedule import Problem
    from celery_hardened.pipeline.beat_refusal import refusal_of

    hardening = hardening_of(ctx)
    app = hardening.app
    try:
        app.loader.import_default_modules()  # as beat does: they set Django up, add entries, and define tasks
        app.finalize()
    except Exception as problem:
        raise CommandError(
            f"the app's modules cannot be imported: {type(problem).__name__}: {problem}", ExitCode.USAGE
        ) from problem
    source = _source(hardening, scheduler)
    try:
        loaded = source.load()
    except Exception as problem:
        raise CommandError(f"the schedules cannot be read: {type(problem).__name__}: {problem}") from problem
    schedules, problems = {}, {}
    for one in loaded:
        if isinstance(one, Problem):
            problems[one.name] = one.text
            continue
        schedules[one.name] = one
        if (refusal := refusal_of(one, hardening)) is not None:
            problems[one.name] = refusal
    return Known(hardening, schedules, problems)


def _source(hardening: Hardening, scheduler: str | None) -> Source:
    from celery_hardened.pipeline.beat import HardenedScheduler

    app = hardening.app
    wanted = scheduler if scheduler is not None else scheduler_of(app)
    try:
        found = ours(wanted)
    except Exception as problem:
        raise CommandError(
            f"there is no scheduler {wanted!r} ({type(problem).__name__}: {problem}).", ExitCode.USAGE
        ) from problem
    if found is None and scheduler is not None:
        raise CommandError(f"{scheduler!r} is no scheduler of celery_hardened's.", ExitCode.USAGE)
    return (found or HardenedScheduler)(app, lazy=True).source()


def scheduler_of(app: Any) -> Any:
    """What ``beat_scheduler`` says, a name or a class; of one whose schedules one of ours reads, the name of ours."""
    said = app.conf.beat_scheduler
    return _AS_OURS.get(said, said) if isinstance(said, str) else said


def ours(wanted: Any) -> type[HardenedScheduler] | None:
    """The scheduler of that name, by Celery's rules; ``None``: it is not one of ours.

    Raises:
        Exception: It cannot be imported; whatever its module raises.
    """
    from celery.utils.imports import load_extension_class_names, symbol_by_name

    from celery_hardened.pipeline.beat import HardenedScheduler

    found = symbol_by_name(wanted, aliases=dict(load_extension_class_names("celery.beat_schedulers") or ()))
    return found if isinstance(found, type) and issubclass(found, HardenedScheduler) else None


@contextmanager
def asking(name: str) -> Iterator[None]:
    """Around questions to a schedule: a class of the user's own may answer with any exception.

    Raises:
        CommandError: It did.
    """
    try:
        yield
    except (click.ClickException, HardenedError):
        raise
    except Exception as problem:
        raise CommandError(
            f"the slots of schedule {name!r} cannot be found ({type(problem).__name__}: {problem})."
        ) from problem


def beat_store(hardening: Hardening) -> BeatStore:
    """Records, pauses, problems and histories."""
    from celery_hardened.beat.names import Keys
    from celery_hardened.beat.store import BeatStore

    return BeatStore(hardening.redis, Keys(hardening.prefix), history=hardening.settings.beat_history)


def each(names: Iterable[str], step: Callable[[str], None]) -> bool:
    """Do *step* for each name; did it go well for all? A refusal is said, and the next one is dealt with."""
    from celery_hardened.cli import output

    well = True
    for name in dict.fromkeys(names):
        try:
            step(name)
        except NotFiredError as refused:
            output.note(str(refused))
            well = False
    return well
