"""Who leads, in Redis: the steps of the leadership, typed. What each does is said in its script."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError, ResponseError
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from celery_hardened.beat.names import Keys
from celery_hardened.redis_connection import answered
from celery_hardened.redis_script import Script

#: Seconds that the term and the clock of the last leader are kept: as long as the records of schedules.
KEEP = 90 * 86_400.0

#: Seconds that the word of a release waits for a standby that is just then not listening.
WAKE = 2.0

#: What redis-py adds to the parameters of a pool on its own; another pool makes its own.
_OF_THE_POOL = (
    "connection_pool", "maint_notifications_pool_handler", "oss_cluster_maint_notifications_handler",
    "orig_host_address", "orig_socket_timeout", "orig_socket_connect_timeout", "himport_registry",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Taken:
    """The asker leads."""

    server: float
    """The server's time, seconds since the epoch."""

    term: int
    mark: float | None
    """What the clock of the leader before said last."""

    how: str
    """``free``, ``released``, ``client_gone`` or ``expired``."""

    after: Mapping[str, Any]
    """Identity of the leader before; empty if none is known."""

    stamp: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Somebody else leads."""

    server: float
    owner: str
    client: str
    """Id of its connection; empty if it may not know it."""

    term: int
    identity: Mapping[str, Any]
    left: float
    """Seconds of its lease."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """The answer to a renewal."""

    held: bool
    """It still leads."""

    server: float
    stamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRecord:
    """All that is known of the leadership, for people. Instants are of the server's clock."""

    server: float
    term: int
    """Of the leader, or of the last one; 0: there never was one."""

    identity: Mapping[str, Any]
    """The same."""

    leads: bool
    since: float | None = None
    tick: float | None = None
    clock: float | None = None
    left: float | None = None
    """Seconds of its lease."""

    how: str = ""
    """How it came to lead; of a last one, how it ended."""

    client: str = ""


class LeaderStore:
    """The leadership of one prefix.

    Every step may be repeated. All raise ``StoreUnavailableError``.

    Args:
        ttl: Seconds of a lease.
    """

    def __init__(self, client: Redis, keys: Keys, *, ttl: float) -> None:
        self._client = client
        self._keys = keys
        self._ttl = _ms(ttl)
        self._acquire = self._script("leader_acquire", "standing for election")
        self._renew = self._script("leader_renew", "renewing the lead")
        self._release = self._script("leader_release", "letting go of the lead")
        self._depose = self._script("leader_depose", "ending the lead of a beat that is gone")

    def _script(self, name: str, operation: str) -> Script:
        return Script(self._client, str(__package__), "leader", name, operation=operation)

    def acquire(self, owner: str, *, client: str, identity: Mapping[str, Any], seen: int = 0) -> Taken | Holder:
        """Take the lead if nobody has it.

        Args:
            client: Id of the asker's connection, or ''.
            seen: The highest term the asker knows of.
        """
        of = self._keys
        args: list[str | int] = [owner, self._ttl, client, json.dumps(dict(identity)), seen, _ms(KEEP)]
        got = self._acquire(keys=[of.leader, of.term, of.stamp], args=args)
        server = int(got[1]) / 1000
        if got[0]:
            mark, how, after = (_text(part) for part in got[3:6])
            return Taken(server, int(got[2]), _float(mark), how, _object(after), int(got[6]))
        holder, its_client, term, its_identity = (_text(part) for part in got[2:6])
        return Holder(server, holder, its_client, int(term), _object(its_identity), int(got[6]) / 1000)

    def renew(self, owner: str, *, client: str, clock: float | None, idle: float) -> Renewed:
        """Begin the lease anew.

        Args:
            clock: What the leader's clock said last.
            idle: Seconds since its main loop was last known to live.
        """
        of = self._keys
        said = "" if clock is None else repr(float(clock))
        args: list[str | int] = [owner, self._ttl, client, said, _ms(idle), _ms(KEEP)]
        held, server, stamp = self._renew(keys=[of.leader, of.term, of.stamp], args=args)
        return Renewed(bool(held), int(server) / 1000, int(stamp))

    def release(self, owner: str) -> bool:
        """Let go and wake one standby. Did *owner* lead?"""
        of = self._keys
        args: list[str | int] = [owner, _ms(WAKE), _ms(KEEP)]
        return bool(self._release(keys=[of.leader, of.term, of.wake], args=args))

    def depose(self, owner: str, *, client: str) -> bool:
        """End the lead of *owner*, if *client* is still its connection."""
        return bool(self._depose(keys=[self._keys.leader, self._keys.term], args=[owner, client, _ms(KEEP)]))

    def wait_for_release(self, seconds: float) -> bool:
        """Wait until a leader lets go, at most so long. Must be less than the client's socket time-out."""
        with answered("waiting for the lead"):
            return self._client.blpop([self._keys.wake], timeout=seconds) is not None

    def client_id(self) -> str:
        """Id of the connection; '' if the server does not say it (an ACL, an old release)."""
        with answered("asking for the id of the connection"):
            try:
                return str(int(self._client.client_id()))
            except ResponseError:
                return ""

    def is_connected(self, client: str) -> bool | None:
        """Is there a connection of that id? ``None``: the server does not say (an ACL, an old release)."""
        with answered("looking for the leader's connection"):
            try:
                return bool(self._client.client_list(client_id=[client]))
            except ResponseError:
                return None

    def read(self) -> LeaderRecord:
        """What is known now."""
        with answered("reading who leads"), self._client.pipeline() as pipe:
            ask_who_leads(pipe, self._keys)
            return leader_told(pipe.execute())


#: Answers that ``ask_who_leads`` leads to.
LEADER_ANSWERS = 4


def ask_who_leads(pipe: Any, keys: Keys) -> None:
    """Put the questions of ``LeaderStore.read`` into *pipe*, for a caller that asks more in the same round trip."""
    pipe.time()
    pipe.hgetall(keys.leader)
    pipe.pttl(keys.leader)
    pipe.hgetall(keys.term)


def leader_told(answers: Sequence[Any]) -> LeaderRecord:
    """What the ``LEADER_ANSWERS`` answers to ``ask_who_leads`` say."""
    (seconds, micros), raw, left, raw_past = answers
    server = seconds + micros / 1e6
    now = {_text(name): _text(value) for name, value in raw.items()}
    past = {_text(name): _text(value) for name, value in raw_past.items()}
    if "owner" not in now:
        ended = past.get("ended") or ("expired" if past else "")
        return LeaderRecord(
            server=server, term=int(past.get("term", 0)), identity=_object(past.get("identity", "")), leads=False,
            clock=_float(past.get("clock", "")), how=ended,
        )  # fmt: skip
    return LeaderRecord(
        server=server, term=int(now.get("term", 0)), identity=_object(now.get("identity", "")), leads=True,
        since=int(now.get("since", 0)) / 1000, tick=int(now.get("tick", 0)) / 1000,
        clock=_float(now.get("clock", "")), left=max(left, 0) / 1000,
        how=now.get("how", ""), client=now.get("client", ""),
    )  # fmt: skip


def own_connection(client: Redis, *, timeout: float, tries: int = 2) -> Redis:
    """A client to where *client* leads (TLS, Sentinel, ACL, credentials), with one connection. Nothing is sent yet.

    One connection, so that its id is the asker's; short time-outs, so that a server that
    does not answer cannot hold the asker for longer than its lease.

    Args:
        timeout: Seconds for an answer, and for a connection, if those of *client* are not shorter.
        tries: How often a step is sent. Two: the server may have closed the connection while it was idle.
    """
    pool = client.connection_pool
    given: dict[str, Any] = {name: value for name, value in pool.connection_kwargs.items() if name not in _OF_THE_POOL}
    for name in ("socket_timeout", "socket_connect_timeout"):
        given[name] = min(given.get(name) or timeout, timeout)
    given["retry"] = Retry(NoBackoff(), tries - 1)
    given["retry"].update_supported_errors([ReadOnlyError])
    if "maint_notifications_config" in given:  # redis-py 7: it would let a server relax the time-outs
        from redis.maint_notifications import MaintNotificationsConfig

        given["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
    given.update(connection_class=pool.connection_class, max_connections=1)
    own: ConnectionPool
    if isinstance(pool, SentinelConnectionPool):
        of: Any = pool
        own = SentinelConnectionPool(  # type: ignore[no-untyped-call]
            of.service_name, of.sentinel_manager, is_master=of.is_master, check_connection=of.check_connection, **given
        )
    else:
        own = ConnectionPool(**given)
    credentials = given.get("credential_provider")
    if credentials is None:
        return Redis(connection_pool=own)
    return Redis(connection_pool=own, credential_provider=credentials)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _float(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    return None


def _object(text: str) -> Mapping[str, Any]:
    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    return {}
