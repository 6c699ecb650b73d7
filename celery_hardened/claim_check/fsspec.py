"""Payloads wherever fsspec can write: S3, GCS, Azure, SFTP and the rest."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

from celery_hardened.claim_check.marked import MarkedPayloadStore
from celery_hardened.errors import ConfigurationError, StoreUnavailableError

#: What file systems call the time of the last write in a listing.
_WRITTEN = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


class FsspecPayloadStore(MarkedPayloadStore):
    """Payloads below an fsspec *url*. Credentials come from where its file system looks for them.

    The file system is made in the process that uses it: most of them have threads and connections
    that do not survive a fork.
    """

    def __init__(self, url: str, *, usual: float = math.inf, clock: Callable[[], float] = time.time) -> None:
        super().__init__(usual=usual, clock=clock)
        self._url = url
        self._made: tuple[int, Any, str] | None = None
        _known(url)

    def _filesystem(self) -> tuple[Any, str]:
        made = self._made
        if made is None or made[0] != os.getpid():
            from fsspec.core import url_to_fs

            # Two threads may both make one. No lock: a fork while it is held would leave it held.
            filesystem, root = url_to_fs(self._url, skip_instance_cache=True)
            made = self._made = (os.getpid(), filesystem, root.rstrip("/"))
        return made[1], made[2]

    def _write(self, name: str, data: bytes) -> None:
        with _answered("storing a payload"):
            filesystem, root = self._filesystem()
            try:
                filesystem.pipe_file(f"{root}/{name}", data)
            except FileNotFoundError:  # a file system with directories, and the first payload
                filesystem.makedirs(root, exist_ok=True)
                filesystem.pipe_file(f"{root}/{name}", data)

    def _read(self, name: str, most: int) -> bytes | None:
        with _answered("reading a payload"):
            filesystem, root = self._filesystem()
            try:
                return bytes(filesystem.cat_file(f"{root}/{name}", start=0, end=most))
            except FileNotFoundError:
                return None

    def _remove(self, name: str) -> None:
        with _answered("removing a payload"):
            filesystem, root = self._filesystem()
            try:
                filesystem.rm_file(f"{root}/{name}")
            except FileNotFoundError:
                return

    def _ages(self) -> Iterator[tuple[str, float]]:
        with _answered("sweeping payloads"):
            filesystem, root = self._filesystem()
            filesystem.invalidate_cache()
            try:
                found = filesystem.ls(root, detail=True)
            except FileNotFoundError:
                return
            now = self._clock()
            for info in found:
                if info.get("type") == "directory":
                    continue
                try:
                    written = _written(filesystem, info)
                except FileNotFoundError:
                    continue  # another worker sweeps too
                yield info["name"].rpartition("/")[2], now - written


def _written(filesystem: Any, info: dict[str, Any]) -> float:
    raw = next((info[name] for name in _WRITTEN if info.get(name) is not None), None)
    if raw is None:
        raw = filesystem.modified(info["name"])
    if isinstance(raw, str):
        raw = datetime.fromisoformat(raw.replace("Z", "+00:00"))
    if isinstance(raw, datetime):
        return (raw if raw.tzinfo else raw.replace(tzinfo=timezone.utc)).timestamp()
    return float(raw)


def _known(url: str) -> None:
    """Refuse a URL that no installed file system understands. Raises ``ConfigurationError``."""
    try:
        from fsspec import get_filesystem_class
        from fsspec.core import split_protocol
    except ImportError as problem:
        raise ConfigurationError(
            f"hardened_payload_store is {_shown(url)}, which needs fsspec: install celery-hardened[payloads]. "
            f"file:, redis: and django: need nothing more."
        ) from problem
    for part in url.split("::"):
        protocol, _ = split_protocol(part)
        protocol = protocol or part  # what goes before another one has no path of its own
        try:
            get_filesystem_class(protocol)
        except ImportError as problem:
            raise ConfigurationError(f"hardened_payload_store is {_shown(url)}, which fsspec says: {problem}") from None
        except ValueError:
            raise ConfigurationError(
                f"hardened_payload_store is {_shown(url)}: no payload store is known for {protocol!r}. "
                f"Write file:///path, redis:, django:alias, or a URL that fsspec knows."
            ) from None


def _shown(url: str) -> str:
    """Of a URL its scheme: the rest may hold a password."""
    return repr(url.partition(":")[0] + ":...")


@contextmanager
def _answered(operation: str) -> Iterator[None]:
    try:
        yield
    except (ConfigurationError, StoreUnavailableError, GeneratorExit):
        raise
    except Exception as problem:  # whatever the file system's own library raises
        raise StoreUnavailableError(operation, f"{type(problem).__name__}: {problem}") from problem
