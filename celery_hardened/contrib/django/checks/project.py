"""What the checks look at: the project's Celery app, and the settings of ours in it. Connects to nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from celery import Celery, _state
from django.core.checks import CheckMessage

from celery_hardened.errors import ConfigurationError
from celery_hardened.hardening import Hardening
from celery_hardened.settings import Settings


def project_app() -> Celery | None:
    """The current app of this process; ``None``: nobody has made one.

    Not ``celery.current_app``: where there is none, that makes one, which stays the default of every thread.
    """
    found = _state._tls.current_app or _state.default_app
    if found is None or (found.main == "default" and Hardening.of(found) is None):
        return None  # the one that Celery makes itself for who asks
    app: Celery = found
    return app


@dataclass(frozen=True)
class Project:
    """An app, whether it is hardened or not."""

    app: Celery
    hardening: Hardening | None

    @cached_property
    def conf(self) -> Any:
        """Celery's configuration. Reads it, if that was not done yet."""
        return self.app.conf

    @cached_property
    def read(self) -> Settings | ConfigurationError:
        """Our settings, or what is wrong with them. Not ``hardening.settings``: those are read once, at first use."""
        try:
            return Settings.from_conf(self.conf)
        except ConfigurationError as problem:
            return problem

    @property
    def settings(self) -> Settings:
        """Our settings; the defaults if they cannot be read, which is a message of its own."""
        return self.read if isinstance(self.read, Settings) else Settings()

    @property
    def letters_alias(self) -> str | None:
        """The database that dead letters are kept in; ``None``: they are kept elsewhere."""
        kind, _, alias = self.settings.dead_letter_store.partition(":")
        return (alias or "default") if kind == "django" else None


#: A rule: nothing, or what is wrong.
Rule: TypeAlias = Callable[[Project], Iterator[CheckMessage]]


def page(title: str) -> str:
    """Where to look, as the end of a hint."""
    return f'See "{title}" in the documentation.'


def listed(names: Any, *, most: int = 5) -> str:
    """The first few names, and how many more there are."""
    found = sorted(names)
    shown = ", ".join(found[:most])
    return shown if len(found) <= most else f"{shown} and {len(found) - most} more"
