"""Why a schedule that is well-formed is not fired all the same."""

from __future__ import annotations

from celery_hardened.beat.jitter import jitter_problem
from celery_hardened.beat.kinds import Every
from celery_hardened.beat.names import window_of
from celery_hardened.beat.schedule import Schedule
from celery_hardened.hardening import Hardening
from celery_hardened.marks import TEXT_MAX, is_header_text


def refusal_of(schedule: Schedule, hardening: Hardening) -> str | None:
    """A sentence, or ``None``: it may be fired."""
    policy, when = schedule.policy, schedule.when
    if not is_header_text(window_of(schedule.name)):
        return (
            f"its name has {len(schedule.name)} characters; at most {TEXT_MAX - len(window_of(''))} that UTF-8 can say "
            f"fit into a message's header. Give it a shorter one."
        )
    if isinstance(when, Every) and (problem := jitter_problem(policy.jitter, when.period)) is not None:
        return problem
    if policy.overlap == "allow":
        return None
    # Only a task that tells somebody when it ends can be kept from overlapping.
    if schedule.task not in hardening.app.tasks:
        return (
            f"overlap={policy.overlap!r} needs a hardened or contained task, and this app knows no task "
            f"{schedule.task!r}. Let beat import its module (imports, include), or set overlap='allow'."
        )
    if hardening.settings.observe:
        return f"overlap={policy.overlap!r} does not work while hardened_observe is on: no task tells its end then."
    return None
