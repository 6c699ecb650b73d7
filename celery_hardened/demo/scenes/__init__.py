"""The scenes, in the order they are played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from celery_hardened.demo.line import Line
from celery_hardened.demo.scenes import bug, flaky, garbage, killer, redrive, validation
from celery_hardened.demo.stage import Stage


@dataclass(frozen=True, slots=True)
class Scene:
    """Something that goes wrong, and the lines of the summary that it yields."""

    title: str
    story: str
    play: Callable[[Stage], list[Line]]


SCENES = (
    Scene(flaky.TITLE, flaky.STORY, flaky.play),
    Scene(validation.TITLE, validation.STORY, validation.play),
    Scene(killer.TITLE, killer.STORY, killer.play),
    Scene(garbage.TITLE, garbage.STORY, garbage.play),
    Scene(bug.TITLE, bug.STORY, bug.play),
    Scene(redrive.TITLE, redrive.STORY, redrive.play),
)
