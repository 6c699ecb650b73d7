"""Events in words, for the screen. Pure."""

from __future__ import annotations

from celery_hardened.demo.diary import Event


def told(event: Event) -> tuple[str, str] | None:
    """What to say of *event*, and its tone: ``good``, ``bad`` or ``wait``. ``None``: nothing."""
    of = event.fields
    match event.name:
        case "retrying":
            return f"attempt {of['attempt']}: {of['error'].strip('<>')}, again in {of['delay']:.2f} s", "wait"
        case "succeeded":
            return ("done" if of["attempt"] == 1 else f"attempt {of['attempt']}: done"), "good"
        case "worker_lost":
            return "killed its process", "wait"
        case "dead_letter":
            before = "killed its process: " if of["reason"] == "poison" else ""
            return f"{before}dead letter, {of['reason']}", "bad"
    return None
