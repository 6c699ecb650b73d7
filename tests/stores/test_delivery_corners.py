"""Corners of delivery: cancels, credit over several connections, words that look like ours."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from queue import Empty

import pytest

from tests.stores.delivery import Box, message, words
from tests.stores.test_delivery_channel import Side, box, make  # noqa: F401
from tests.support.until import until


def test_a_cancel_during_a_fetch(make: Callable[..., Side], box: Box) -> None:
    """Its answer will not be read any more: what it leased goes back at once, not when the channel closes."""
    side = make()
    consumer = side.consume("q", "r")
    side.turn()
    [channel] = side.delivery.consumers()
    [fetcher] = [one for one in channel._fetchers if one.awaits == "r"]
    box.put("r", message("r"))
    own = channel.own_list("r")
    until(lambda: box.client.llen(own), within=20, what="the wait to bring the message")
    with contextlib.suppress(Empty):
        fetcher.read()
    until(lambda: box.tags, within=20, what="the message to be leased")
    consumer.cancel_by_queue("r")
    for _ in range(3):
        side.turn()
    until(lambda: words(box.waiting("r")) == ["r"], within=10, what="the message to be in its queue")
    assert box.tags == []


@pytest.mark.parametrize("names", [["a", "b", "c"], ["a"]], ids=["queues", "priorities"])
def test_credit_is_kept(make: Callable[..., Side], box: Box, names: list[str]) -> None:
    """Fetches under way count: one free place, several waits answered at once, one message is taken."""
    side = make()
    side.consume(*names, prefetch=1)
    side.turn()
    [channel] = side.delivery.consumers()
    waiting = [fetcher for fetcher in channel._fetchers if fetcher.state == "waiting"]
    for fetcher in waiting:
        box.put(fetcher.queue, message(fetcher.awaits), step=fetcher.step)
        until(lambda: box.client.llen(channel.own_list(fetcher.awaits)), within=20, what="the wait to bring it")  # noqa: B023
    assert len(waiting) > 1
    for fetcher in waiting:
        with contextlib.suppress(Empty):
            fetcher.read()
    assert len([fetcher for fetcher in waiting if fetcher.state == "fetching"]) == 1
    assert len(box.tags) == 1


def test_a_word_that_looks_like_the_mark(box: Box) -> None:
    """A started message is marked whatever its producer wrote into its headers."""
    box.put("q", message("hardened-delivery"))
    box.fetch()
    box.scripts.give_back(box.tags, started=True)
    [item] = box.waiting()
    assert json.loads(item).get("hardened-delivery") == {"redelivered": True}


def test_half_a_character(box: Box) -> None:
    """Python writes and reads it (a file name that is not UTF-8, in a header); kombu's own workers run it."""
    box.put("q", json.dumps({"headers": {"word": "\udce9"}, "properties": {}}).encode())
    taken = box.fetch()
    assert taken.bad == 0
