"""The table of finished work, in SQL for PostgreSQL and SQLite. Pure text; parameters are written ``:name``.

A row is inserted when work begins and committed with the effect, so a committed row is
finished work. One that is committed and not ``finished`` is the trace of somebody who committed
in the middle; it counts as nothing, because work that was not finished must be done.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

TABLE = "celery_hardened_finished_work"

#: Seconds that a claim waits for SQLite's one write lock. PostgreSQL's lock is not waited for.
LOCK_WAIT = 1.0


@dataclass(frozen=True, slots=True)
class Statements:
    """What is sent to one kind of database."""

    lock: str | None
    """Try to lock the work, and the work together with the message: two booleans. It waits for nobody.

    It also has the server look, for as long as the transaction lasts, whether the machine at the other end
    is there: by default a server asks after two idle hours, and a lost machine would hold its key till then.
    ``None``: the transaction has the one lock there is already.
    """

    begin: str
    """Insert the marker; no row is changed if the work is done."""

    look: str
    """The fingerprint, task id and result of work that is done."""

    finish: str
    """Complete the marker; no row is changed if it is not there."""

    sweep: str
    """Delete a batch of what nobody can ask for any more."""


def _statements(*, lock: str | None, now: str, later: str, skip_locked: str) -> Statements:
    return Statements(
        lock=lock,
        begin=f"INSERT INTO {TABLE} AS work (key, fingerprint, task_id, result, finished, created_at, expires_at) "  # noqa: S608
        f"VALUES (:key, :fingerprint, :task_id, NULL, FALSE, {now}, {later}) "
        f"ON CONFLICT (key) DO UPDATE SET fingerprint = excluded.fingerprint, task_id = excluded.task_id, "
        f"result = NULL, finished = FALSE, created_at = excluded.created_at, expires_at = excluded.expires_at "
        f"WHERE work.expires_at <= {now} OR NOT work.finished",
        look=f"SELECT fingerprint, task_id, result FROM {TABLE} WHERE key = :key",  # noqa: S608
        finish=f"UPDATE {TABLE} SET result = :result, finished = TRUE, expires_at = {later} "  # noqa: S608
        f"WHERE key = :key AND task_id = :task_id AND NOT finished",
        sweep=f"DELETE FROM {TABLE} WHERE key IN "  # noqa: S608
        f"(SELECT key FROM {TABLE} WHERE expires_at <= {now} ORDER BY expires_at LIMIT :most{skip_locked})",
    )


STATEMENTS = {
    "postgresql": _statements(
        lock="SELECT pg_try_advisory_xact_lock(CAST(:work AS bigint)), "
        "pg_try_advisory_xact_lock(CAST(:message AS bigint)), "
        "set_config('tcp_keepalives_idle', CAST(:idle AS text), TRUE), "
        "set_config('tcp_keepalives_interval', CAST(:interval AS text), TRUE), "
        "set_config('tcp_keepalives_count', CAST(:count AS text), TRUE), "
        "set_config('tcp_user_timeout', CAST(:unanswered AS text), TRUE)",
        now="clock_timestamp()",
        later="clock_timestamp() + make_interval(secs => CAST(:lifetime AS double precision))",
        skip_locked=" FOR UPDATE SKIP LOCKED",
    ),
    "sqlite": _statements(
        lock=None,
        now="strftime('%Y-%m-%d %H:%M:%f', 'now')",
        later="strftime('%Y-%m-%d %H:%M:%f', 'now', :lifetime || ' seconds')",
        skip_locked="",
    ),
}


#: Questions without an answer after which a server gives a machine up.
_QUESTIONS = 3


def keepalive(lease: float) -> dict[str, str]:
    """Parameters of ``lock`` that have the server give up a lost machine in about *lease* seconds."""
    return {
        "idle": str(max(1, round(lease / 2))),
        "interval": str(max(1, round(lease / (2 * _QUESTIONS)))),
        "count": str(_QUESTIONS),
        # An answer that is on its way when the machine is lost is sent again for a quarter of an hour otherwise.
        "unanswered": str(max(1000, round(lease * 1000))),
    }


def lock_number(*parts: str) -> int:
    """The 64-bit number of an advisory lock. PostgreSQL knows locks by number, and the project has its own."""
    digest = hashlib.sha256("\0".join(("celery_hardened", *parts)).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
