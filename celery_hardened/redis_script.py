"""Lua scripts that lie beside their store."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any, TypeAlias

from redis import Redis
from redis.client import Pipeline

from celery_hardened.redis_connection import answered

Argument: TypeAlias = str | bytes | int | float


class Script:
    """One atomic step in Redis, made of one or more ``.lua`` files of a package.

    Sent by EVALSHA; a server that does not know it (restart, failover) is told
    once and asked again. Redis scripts cannot import, so what several of them
    share is a file of its own that goes before them:
    ``Script(client, __package__, "records", "put")``.

    The client repeats a step whose answer was lost on the way, so each must be
    written to do nothing more, and to answer the same, the second time.

    Args:
        operation: What it does, for the error message; by default the last file's name.
    """

    def __init__(self, client: Redis, package: str, *names: str, operation: str | None = None) -> None:
        folder = resources.files(package)
        source = "\n".join(folder.joinpath(f"{name}.lua").read_text("utf-8") for name in names)
        self._script = client.register_script(source)
        self._operation = operation or names[-1].replace("_", " ")

    def __call__(self, *, keys: Sequence[str], args: Sequence[Argument] = ()) -> Any:
        """Run the step and return what the script returned.

        Raises:
            StoreUnavailableError: Redis did not answer, or refused.
        """
        with answered(self._operation):
            return self._script(keys=[_bytes(key) for key in keys], args=[_encoded(value) for value in args])

    def queue(self, pipeline: Pipeline, *, keys: Sequence[str], args: Sequence[Argument] = ()) -> None:
        """Add the step to *pipeline*; its answer is among those of ``pipeline.execute()``."""
        self._script(keys=[_bytes(key) for key in keys], args=[_encoded(value) for value in args], client=pipeline)


def _encoded(value: Argument) -> Argument:
    return _bytes(value) if isinstance(value, str) else value


def _bytes(value: str) -> bytes:
    """Words out of foreign messages may hold lone surrogates, which redis-py refuses to encode."""
    return value.encode("utf-8", "backslashreplace")
