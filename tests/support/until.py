"""Waiting for a fact, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError

T = TypeVar("T")


def until(fact: Callable[[], T], *, within: float = 30.0, what: str, every: float = 0.05) -> T:
    """
    Ask *fact* until it answers something true, and return that answer.

    Args:
        fact: Asked every *every* seconds. An ``OSError`` or a Redis ``ConnectionError`` (nobody
            listens yet) counts as "not yet".
        within: Seconds until the test fails. Deadlines carry five times what an idle machine needs.
        what: The fact in words, for the failure: "the body to start".

    Raises:
        AssertionError: The time is up. It tells the last answer.
    """
    deadline = time.monotonic() + within
    while True:
        late = time.monotonic() > deadline  # first: who stood still until then asks once more
        try:
            answer: T | Exception = fact()
        except (OSError, RedisConnectionError) as error:
            answer = error
        if answer and not isinstance(answer, Exception):
            return answer
        if late:
            raise AssertionError(f"waited {within} s for {what}; last answer: {answer!r}")
        time.sleep(every)
