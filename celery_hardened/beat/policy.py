"""What becomes of slots that were missed, and of a slot whose last run is not over. Pure."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal, TypeAlias, cast, get_args

from celery_hardened.errors import ConfigurationError

MissedRun: TypeAlias = Literal["run_once", "skip", "run_all"]
Overlap: TypeAlias = Literal["allow", "skip", "buffer_one", "cancel_other", "terminate_other"]

#: Why a slot was not fired under its own name.
Reason: TypeAlias = Literal[
    "coalesced",
    "expired",
    "skipped",
    "beyond_max_catchup",
    "overlapped",
    "paused",
    "skipped_by_hand",
    "not_sent",
    "superseded",
]

#: No beat is always on time: a slot that may be later by less would be fired by luck.
_LEAST_LATENESS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The policies of one schedule. Durations are seconds."""

    missed_run: MissedRun = "run_once"
    """Of slots that nobody could fire in time: the latest once, none, or each of them."""

    catchup_window: float | None = 86_400.0
    """A missed slot older than this is not made up for. ``None``: however old."""

    max_catchup: int = 100
    """``run_all``: so many missed slots at most, the newest."""

    grace: float = 30.0
    """A slot that is late by no more than this is on time."""

    overlap: Overlap = "allow"
    """While the last run waits or runs: fire all the same, do not, keep one waiting, or end the other."""

    jitter: float = 0.0
    """Each slot is fired up to so much later, always the same for the same slot."""

    @property
    def ends_other(self) -> bool:
        """Does a fire put an end to the run before it?"""
        return self.overlap in ("cancel_other", "terminate_other")

    @classmethod
    def of(cls, options: Mapping[str, Any], *, otherwise: Policy) -> Policy:
        """The policy in an entry's *options*; what they do not say is as in *otherwise*.

        Durations are numbers of seconds or ``timedelta``. Keys that are no policy's are left alone.

        Raises:
            ConfigurationError: A value is malformed, or two contradict each other.
        """
        said = {name: options[name] for name in POLICY_KEYS if name in options}

        def value(name: str) -> Any:
            return said.get(name, getattr(otherwise, name))

        window = value("catchup_window")
        policy = cls(
            missed_run=cast(MissedRun, _one_of("missed_run", value("missed_run"), get_args(MissedRun))),
            catchup_window=None if window is None else _seconds("catchup_window", window, none="no limit"),
            max_catchup=_count("max_catchup", value("max_catchup")),
            grace=_seconds("grace", value("grace")),
            overlap=cast(Overlap, _one_of("overlap", value("overlap"), get_args(Overlap))),
            jitter=_seconds("jitter", value("jitter")),
        )
        _contradictions(policy, said)
        return policy


#: What an entry may say beside Celery's own keys.
POLICY_KEYS = tuple(field.name for field in fields(Policy))


def _contradictions(policy: Policy, said: Mapping[str, Any]) -> None:
    def named(name: str) -> str:
        default = "" if name in said else f", from hardened_beat_{name}" if name != "jitter" else ", by default"
        return f"{name} ({getattr(policy, name):g} s{default})"

    window = policy.catchup_window
    if policy.missed_run == "skip":
        if policy.grace < _LEAST_LATENESS:
            raise ConfigurationError(
                f"missed_run is 'skip', so a slot later than {named('grace')} is not fired; every beat is late by a "
                f"moment, and nothing might ever fire. Raise grace to {_LEAST_LATENESS:g} s at least."
            )
    elif window is not None and window < _LEAST_LATENESS:
        raise ConfigurationError(
            f"a slot older than {named('catchup_window')} is not fired; every beat is late by a moment, and nothing "
            f"might ever fire. Raise catchup_window to {_LEAST_LATENESS:g} s at least, or set missed_run='skip'."
        )
    if window is not None and window < policy.grace:
        raise ConfigurationError(
            f"{named('catchup_window')} is shorter than {named('grace')}: what is older than the one was on time "
            f"by the other. Raise catchup_window or lower grace; missed_run='skip' makes up for nothing."
        )
    if window is not None and policy.jitter > window:
        raise ConfigurationError(
            f"{named('jitter')} is longer than {named('catchup_window')}: a slot would be put off longer than it "
            f"is worth firing. Lower jitter or raise catchup_window."
        )


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in allowed:
        return value
    near = difflib.get_close_matches(str(value), allowed, n=1, cutoff=0.5)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    raise ConfigurationError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.{guess}")


def _seconds(name: str, value: Any, *, none: str | None = None) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not math.isfinite(seconds) or seconds < 0:
        or_none = f", or None for {none}" if none else ""
        raise ConfigurationError(
            f"{name} is {value!r}; it must be a number of seconds or a timedelta, at least 0{or_none}."
        )
    return float(seconds)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name} is {value!r}; it must be a whole number, at least 1.")
    return value
