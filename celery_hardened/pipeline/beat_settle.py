"""What a leading beat sees to about once a second, after the slots that are due."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from celery_hardened.beat.standing import Standing
from celery_hardened.beat.store import Revoke

if TYPE_CHECKING:
    from celery_hardened.pipeline.beat import Beat

logger = logging.getLogger("celery_hardened.beat")

#: Runs ended, and schedules forgotten, in one go.
_PAGE = 100

#: Of runs to be ended, at one look: more than can be replaced in a second.
_PAGES = 20

#: Seconds. A record is kept so long after its schedule was taken out of the configuration: a deploy may
#: be rolled back.
KEPT_FOR = 30 * 86_400.0

#: Seconds between two renewals of the records' life. They outlive the last beat by months.
KEEP_ALIVE = 3600.0


class Settling:
    """Made anew by each leader."""

    def __init__(self, beat: Beat) -> None:
        self._beat = beat
        self._forgot = False
        self._kept_alive = time.monotonic() - KEEP_ALIVE

    def settle(self, standing: Standing) -> None:
        """Raises ``NotLeaderError`` and ``StoreUnavailableError``, as the steps themselves do."""
        self._end_others(standing)
        self._beat.leadership.touch(self._beat.clock.now())  # a broker that is away may have taken its time
        self._try_buffered(standing)
        self._say_problems(standing)
        self._forget_unknown(standing)
        self._keep_alive(standing)

    def _end_others(self, standing: Standing) -> None:
        """Revoke the runs that ``cancel_other`` and ``terminate_other`` have replaced.

        The script that fired their successors wrote them down, so a leader that dies here leaves
        them to the next one; to revoke a task twice changes nothing.
        """
        beat = self._beat
        for _ in range(_PAGES):
            revokes = beat.store.revokes(standing.owner, _PAGE)
            if not revokes:
                return
            try:
                self._broadcast(revokes)
            except Exception as problem:  # noqa: BLE001 - the broker may be away; they stay written down
                logger.warning("%d runs are not ended yet, the broker does not answer: %s", len(revokes), problem)
                return
            beat.store.revoked(standing.owner, revokes)
            if len(revokes) < _PAGE:
                return

    def _broadcast(self, revokes: Sequence[Revoke]) -> None:
        """Tell the workers, with one message for many runs."""
        app: Any = self._beat.hardening.app
        with app.connection_for_write() as connection:
            # Once; a connection out of the pool would try for as long as it takes.
            connection.ensure_connection(max_retries=1, interval_start=0)
            for terminate in (False, True):
                ids = [revoke.id for revoke in revokes if revoke.id and revoke.terminate is terminate]
                if ids:
                    app.control.revoke(ids, terminate=terminate, connection=connection)

    def _try_buffered(self, standing: Standing) -> None:
        """Slots that wait for the run before them, and messages that are not known to have arrived."""
        beat = self._beat
        names = [*beat.book.buffered]
        plans = [plan for name in names if (plan := beat.book.plan_buffered(name)) is not None]
        for first in range(0, len(plans), _PAGE):
            beat.firing.carry_out(standing, plans[first : first + _PAGE])
        beat.firing.finish_pending(standing)

    def _say_problems(self, standing: Standing) -> None:
        said = self._beat.book.said
        if said:
            self._beat.store.set_problems(standing.owner, dict(said))
            said.clear()

    def forget_gone(self, standing: Standing) -> None:
        """Records of schedules that were taken out of a database, before anything else is decided: one that
        comes back is a new one."""
        book = self._beat.book
        for name, fire in book.left.items():
            self._beat.firing.let_go(name, fire)
        self._forget(standing, book.gone)

    def _forget_unknown(self, standing: Standing) -> None:
        """Records of schedules that nobody has for long. A database that was away has not said which it has."""
        if not self._forgot and len(self._beat.book):
            self._forgot = True
            self._forget(standing, self._beat.book.unknown(self._beat.clock.now(), older_than=KEPT_FOR))

    def _forget(self, standing: Standing, names: Iterable[str]) -> None:
        found = sorted(names)
        if found:
            self._beat.store.forget(standing.owner, found)
            self._beat.book.forget(found)

    def _keep_alive(self, standing: Standing) -> None:
        """Schedules that are due once a year do not lose their records meanwhile."""
        if time.monotonic() - self._kept_alive >= KEEP_ALIVE:
            self._beat.store.take(standing.owner, [])
            self._kept_alive = time.monotonic()
