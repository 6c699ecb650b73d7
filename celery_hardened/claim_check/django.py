"""Payloads in one of Django's storages (``STORAGES``)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timezone
from typing import Any

from celery_hardened.claim_check.marked import MarkedPayloadStore
from celery_hardened.errors import ConfigurationError, StoreUnavailableError

#: Folder of our objects; a project's storage may hold its own files too.
FOLDER = "hardened-payloads"


class DjangoPayloadStore(MarkedPayloadStore):
    """Payloads in ``storages[alias]``."""

    def __init__(self, alias: str, *, usual: float = math.inf, clock: Callable[[], float] = time.time) -> None:
        super().__init__(usual=usual, clock=clock)
        self._alias = alias
        self._storage()  # a wrong alias is told at once; nothing is connected to

    def _storage(self) -> Any:
        # Asked each time: tests change STORAGES, and Django keeps the object itself.
        try:
            from django.core.exceptions import ImproperlyConfigured
            from django.core.files.storage import storages
            from django.core.files.storage.handler import InvalidStorageError
        except ImportError as problem:
            raise ConfigurationError(
                "hardened_payload_store is a django: URL, and Django is not installed in this environment."
            ) from problem
        try:
            return storages[self._alias]
        except (InvalidStorageError, ImproperlyConfigured) as problem:
            raise ConfigurationError(
                f"hardened_payload_store names Django's storage {self._alias!r}, which cannot be used ({problem}). "
                f"Add it to STORAGES, or write another alias behind django:."
            ) from problem

    def _write(self, name: str, data: bytes) -> None:
        from django.core.files.base import ContentFile

        path = f"{FOLDER}/{name}"
        with _answered("storing a payload"):
            storage = self._storage()
            saved = storage.save(path, ContentFile(data))
            if saved != path:  # it was there: a mark that another worker has written too
                storage.delete(saved)

    def _read(self, name: str, most: int) -> bytes | None:
        with _answered("reading a payload"):
            try:
                with self._storage().open(f"{FOLDER}/{name}", "rb") as file:
                    return bytes(file.read(most))
            except FileNotFoundError:
                return None

    def _remove(self, name: str) -> None:
        with _answered("removing a payload"):
            try:
                self._storage().delete(f"{FOLDER}/{name}")
            except FileNotFoundError:
                return

    def _ages(self) -> Iterator[tuple[str, float]]:
        with _answered("sweeping payloads"):
            storage, now = self._storage(), self._clock()
            try:
                _, names = storage.listdir(FOLDER)
            except FileNotFoundError:
                return
            for name in names:
                try:
                    written = storage.get_modified_time(f"{FOLDER}/{name}")
                except FileNotFoundError:
                    continue  # another worker sweeps too
                if written.tzinfo is None and _uses_utc():
                    written = written.replace(tzinfo=timezone.utc)
                yield name, now - written.timestamp()


def _uses_utc() -> bool:
    """Without USE_TZ a storage answers in the local time of the process, which ``timestamp`` takes it for."""
    from django.conf import settings

    return bool(settings.USE_TZ)


@contextmanager
def _answered(operation: str) -> Iterator[None]:
    try:
        yield
    except (ConfigurationError, StoreUnavailableError, GeneratorExit):
        raise
    except Exception as problem:  # whatever the storage's own library raises
        raise StoreUnavailableError(operation, f"{type(problem).__name__}: {problem}") from problem
