"""What a beat says about the election: each thing once, when it changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from celery_hardened.beat.leader_store import Holder, Taken
from celery_hardened.beat.steps import readable

logger = logging.getLogger("celery_hardened.beat")

#: Seconds by which the clocks of host and server may differ before it is said.
APART = 30.0

_HOW = {
    "free": "nobody led before",
    "released": "{after} let go",
    "client_gone": "the connection of {after} was gone",
    "expired": "the lease of {after} ran out",
}


def named(identity: Mapping[str, object]) -> str:
    """``host (pid 12)``; empty if nothing is known."""
    host, pid = identity.get("host"), identity.get("pid")
    return readable(f"{host} (pid {pid})") if host else ""


class Words:
    """What was said last.

    Args:
        said: Called when this beat leads, or does not any more: which of the two, the term, and why.
    """

    def __init__(self, said: Callable[[bool, int, str], object] | None = None) -> None:
        self._said = said or (lambda *_: None)
        self._term: int | None = None
        self._led = 0
        self._reachable: bool | None = None
        self._holder = ""
        self._apart = False

    def lead(self, term: int | None, *, taken: Taken | None, lost: tuple[int, str], wanted: bool) -> bool:
        """This beat leads under that term, or not. Is that news?

        Args:
            lost: The last term that was lost, and why; of another one the window of trust ended.
            wanted: It let go by itself.
        """
        if term == self._term:
            return False
        if self._term is not None:
            level = logging.INFO if wanted else logging.WARNING
            why = lost[1] if lost[0] == self._term else "Redis did not answer its renewals in time"
            logger.log(level, "this beat leads no more (term %d): %s", self._term, why)
            self._said(False, self._term, why)
        if term is not None and term == self._led:
            why = "nobody took the lead meanwhile"
            logger.info("this beat leads on (term %d): %s", term, why)
            self._said(True, term, why)
        elif term is not None:
            logger.info("this beat leads (term %d): %s", term, _how(taken))
            self._said(True, term, _how(taken))
        self._term, self._led, self._holder = term, term or self._led, ""
        return True

    def stands_by(self, holder: Holder, app: object = None) -> None:
        """Another beat leads, which may be one of another *app*: then nobody fires the schedules of ours."""
        if holder.owner == self._holder:
            return
        self._holder = holder.owner
        who, other = named(holder.identity) or "another", holder.identity.get("app", app)
        logger.info("this beat stands by: %s leads (term %d)", who, holder.term)
        if other != app:
            logger.warning(
                "%s leads for the app %r, and this beat is of %r: while it does, nobody fires the schedules of this "
                "one. Give each app a hardened_key_prefix of its own",
                who,
                other,
                app,
            )

    def reachable(self, problem: str | None) -> bool:
        """Redis answers, or does not because of *problem*. Is that news?"""
        if self._reachable is (problem is None):
            return False
        if problem is not None:
            logger.error("Redis is away, and no schedule is fired: %s", problem)
        elif self._reachable is False:
            logger.warning("Redis is back")
        self._reachable = problem is None
        return True

    def clocks(self, server_ahead: float) -> None:
        """The clocks of server and host differ by so much."""
        apart = abs(server_ahead) > APART
        if apart and not self._apart:
            logger.warning("the clock of Redis is %+.0f s ahead of this host's: one of them is wrong", server_ahead)
        elif self._apart and not apart:
            logger.info("the clocks of Redis and of this host agree again")
        self._apart = apart


def _how(taken: Taken | None) -> str:
    return _HOW.get(taken.how, taken.how).format(after=named(taken.after) or "the one before") if taken else ""
