"""What is told of scheduled runs in Redis: the reports of workers, and the histories that beats write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from redis import Redis

from celery_hardened.beat.names import Keys
from celery_hardened.beat.run_report import RunReport
from celery_hardened.beat.steps import decoded, encoded
from celery_hardened.redis_connection import answered
from celery_hardened.redis_script import Script

#: Reports that wait to be read, the latest: about so many, as Redis drops them in blocks.
MOST_REPORTS: Final = 10_000

#: Seconds for which reports wait that nobody reads, from the last one on.
REPORTS_TTL: Final = 7 * 86_400.0

_FIELD: Final = b"r"


class RunStore:
    """Reports and histories of one app. May be shared by threads.

    Every method raises ``StoreUnavailableError`` if Redis does not answer, or refuses.
    """

    def __init__(self, client: Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._reports = keys.runs
        self._newest = Script(client, str(__package__), "newest", operation="reading the histories of schedules")

    # --- reports ------------------------------------------------------------------------------------------

    def report(self, reports: Sequence[RunReport]) -> None:
        """Add *reports*. If the answer is lost, they may be there twice: that is for the reader."""
        with answered("telling of scheduled runs"), self._client.pipeline(transaction=False) as pipe:
            for one in reports:
                text = one.text().encode("utf-8", "backslashreplace")
                pipe.xadd(self._reports, {_FIELD: text}, maxlen=MOST_REPORTS, approximate=True)
            pipe.pexpire(self._reports, round(REPORTS_TTL * 1000))
            pipe.execute()

    def reports(self, most: int) -> tuple[list[bytes], list[RunReport]]:
        """The oldest *most* reports: their names, for ``done_with``, and those that can be read."""
        with answered("reading what workers tell of scheduled runs"):
            entries: Any = self._client.xrange(self._reports, count=most)
        names: list[bytes] = []
        found = []
        for name, said in entries:
            names.append(name)
            try:
                found.append(RunReport.parse((said or {}).get(_FIELD, b"")))
            except ValueError:
                continue  # nobody of ours has written it, and it goes with the others
        return names, found

    def done_with(self, names: Sequence[bytes]) -> None:
        """Remove reports, by name. One that another reader has removed is no matter."""
        if names:
            with answered("removing what workers have told of scheduled runs"):
                self._client.xdel(self._reports, *names)

    # --- histories ----------------------------------------------------------------------------------------

    def schedules(self) -> list[str]:
        """All that have a record. A schedule that was only ever fired by hand has none."""
        with answered("reading the names of schedules"):
            return [decoded(name) for name in self._client.hkeys(self._keys.records)]

    def newest(self, names: Sequence[str]) -> list[bytes | None]:
        """The newest line of each history, as it is kept."""
        # One script: hundreds are asked for each second, and as commands of their own they cost ten times as much.
        return list(self._newest(keys=[self._keys.history("")], args=[encoded(name) for name in names]))

    def histories(self, names: Sequence[str], most: int) -> list[list[bytes]]:
        """The newest *most* lines of each history, newest first."""
        with answered("reading the histories of schedules"), self._client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.lrange(encoded(self._keys.history(name)), 0, most - 1)
            return [lines if isinstance(lines, list) else [] for lines in pipe.execute(raise_on_error=False)]
