"""The clock of a zone, cut where its UTC offset changes. Pure.

Everything is whole seconds: *instants* since the epoch in UTC, and *local* seconds, which are what a clock on the
wall of that zone shows, counted as if it were UTC.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import NamedTuple

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - what the clock on the wall shows has no zone

#: About thirteen months. Offsets are looked up for so long a time at once, and kept.
_CHUNK_BITS = 25

#: No zone has changed its offset twice within three days since 1900.
_PROBE = 86_400


class Span(NamedTuple):
    """From *start* to before *end* the clock is *offset* ahead of UTC."""

    start: int
    end: int
    offset: int

    reached: int
    """What the clock had come to before *start*: less than its local start after a jump ahead (what lies between
    does not exist), more after a jump back (what lies between comes again)."""


class Zone:
    """One zone's spans, worked out when they are first asked for. Get it from ``zone_of``, so that it is shared."""

    __slots__ = ("_chunks", "_tz")

    def __init__(self, tz: tzinfo) -> None:
        self._tz = tz
        self._chunks: dict[int, tuple[Span, ...]] = {}

    def __repr__(self) -> str:
        return f"Zone({self._tz})"

    @property
    def tz(self) -> tzinfo:
        """The zone itself."""
        return self._tz

    def span(self, instant: int) -> Span:
        """The span that *instant* lies in. Two neighbours may have the same offset."""
        spans = self._chunks.get(instant >> _CHUNK_BITS)
        if spans is None:
            # Two threads may both do it: they come to the same.
            spans = self._chunks[instant >> _CHUNK_BITS] = self._spans(instant >> _CHUNK_BITS)
        for span in spans:
            if instant < span.end:
                return span
        raise AssertionError("a chunk's last span ends where the chunk does")

    def offset(self, instant: int) -> int:
        """How far the local clock is ahead of UTC, in seconds."""
        # Only this direction: what an instant is in local time is never ambiguous.
        local = datetime.fromtimestamp(instant, self._tz).replace(tzinfo=None)
        return int((local - _EPOCH).total_seconds()) - instant

    def _spans(self, chunk: int) -> tuple[Span, ...]:
        first, last = chunk << _CHUNK_BITS, (chunk + 1) << _CHUNK_BITS
        # Begun three days early: the clock may just have been put back by up to a day.
        start = before = first - 3 * _PROBE
        offset = self.offset(start)
        reached = start + offset
        spans = []

        def until(end: int) -> None:
            if end > first:
                spans.append(
                    Span(max(start, first), end, offset, max(reached, first + offset) if start < first else reached)
                )

        for probe in (*range(start + _PROBE, last, _PROBE), last):
            if self.offset(probe) != offset:
                change = self._change(before, probe, offset)
                until(change)
                reached = max(reached, change + offset)
                start, offset = change, self.offset(change)
            before = probe
        if start < last:
            until(last)
        return tuple(spans)

    def _change(self, before: int, after: int, offset: int) -> int:
        """The first instant in (*before*, *after*] with another offset than *offset*."""
        while after - before > 1:
            middle = (before + after) // 2
            if self.offset(middle) == offset:
                before = middle
            else:
                after = middle
        return after


@lru_cache(maxsize=1024)
def zone_of(tz: tzinfo) -> Zone:
    """The spans of *tz*, shared by all that ask for it."""
    return Zone(tz)


class SystemZone(tzinfo):
    """The zone that the host is set to. All are equal."""

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        return None if dt is None else dt.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, dt: datetime | None) -> timedelta | None:  # noqa: ARG002 - nobody knows
        return None

    def tzname(self, dt: datetime | None) -> str:  # noqa: ARG002 - the same all year
        return "local"

    def fromutc(self, dt: datetime) -> datetime:
        local = dt.replace(tzinfo=timezone.utc).astimezone()
        again = local.replace(tzinfo=None).astimezone().utcoffset() != local.utcoffset()
        return local.replace(tzinfo=self, fold=int(again))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SystemZone)

    def __hash__(self) -> int:
        return hash(SystemZone)

    def __str__(self) -> str:
        return "local"
