"""What an app says of itself without a connection, for commands that print files made for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

#: First parts of names of tasks that are not the project's: Celery's own, and ours.
_NOT_THE_PROJECTS = ("celery.", "celery_hardened.")


def hard_limits(app: Any) -> Iterator[tuple[str, float | None]]:
    """Each task of the project, and the seconds of its hard time limit; ``None``: it has none.

    Our own task (bulk actions of the admin) is left out. Its limit of half an hour is room for one long step and no
    measure of the project's work, and it may be killed at any moment: what is done is in its row, its message comes
    again, and it goes on from there.
    """
    app.finalize(auto=True)
    app.loader.import_default_modules()
    for name, task in app.tasks.items():
        if not name.startswith(_NOT_THE_PROJECTS):
            yield name, task.time_limit or app.conf.task_time_limit or None


def broker_kind(app: Any) -> Literal["redis", "rabbitmq"] | None:
    """What the app's broker is by its URL; ``None``: another one."""
    with app.connection_for_read() as connection:
        kind = connection.transport.driver_type
    kinds: dict[str, Literal["redis", "rabbitmq"]] = {"redis": "redis", "amqp": "rabbitmq"}
    return kinds.get(kind)
