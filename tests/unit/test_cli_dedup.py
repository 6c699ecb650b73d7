"""``hardened dedup``: what is held is shown, and given back, in this process."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_hardened import Hardening
from celery_hardened.dedup.contract import WindowStore
from celery_hardened.pipeline.windows import windows
from tests.support.cli import answers, call, make_app
from tests.unit.test_cli_reference import named_fields, section


@pytest.fixture
def app() -> Celery:
    return make_app()


@pytest.fixture
def store(app: Celery) -> WindowStore:
    store = windows(Hardening.expect(app))
    store.enter("shop.refresh:1:aa", task_id="t1", ttl=7200)
    store.enter("shop.refresh:1:bb", task_id="t2", ttl=60)
    store.enter("shop.report:1:cc", task_id="t3", ttl=90)
    return store


def keys(store: WindowStore) -> set[str]:
    return {held.key for held in store.held()}


def test_keys_are_listed_with_their_task_and_time(app: Celery, store: WindowStore) -> None:
    """The one that is free first comes first."""
    shown = call(app, "dedup", "list")
    assert shown.exit_code == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert lines[0] == ["KEY", "FREE", "WITHIN", "TASK", "ID"]
    assert [line[0] for line in lines[1:]] == ["shop.refresh:1:bb", "shop.report:1:cc", "shop.refresh:1:aa"]
    assert lines[3][1:] in (["2h", "t1"], ["1h", "t1"])
    listed = answers(call(app, "dedup", "list", "--task", "shop.refresh", "--json"))
    assert [(one["key"], one["task_id"]) for one in listed] == [
        ("shop.refresh:1:bb", "t2"),
        ("shop.refresh:1:aa", "t1"),
    ]
    assert 0 < listed[0]["left"] <= 60
    assert named_fields(section("Keys in JSON")) == set(listed[0])


def test_nothing_held_is_said(app: Celery) -> None:
    shown = call(app, "dedup", "list")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "no keys" in shown.stderr


def test_a_key_is_freed_whoever_has_it(app: Celery, store: WindowStore) -> None:
    """One needs no confirmation; one that nobody holds is what was wanted."""
    freed = call(app, "dedup", "free", "shop.refresh:1:aa")
    assert (freed.exit_code, freed.stdout) == (0, "freed 1 of 1 key\n")
    assert "held by t1" in freed.stderr
    assert keys(store) == {"shop.refresh:1:bb", "shop.report:1:cc"}
    again = answers(call(app, "dedup", "free", "shop.refresh:1:aa", "--json"))
    assert again == [{"freed": {}, "not_held": ["shop.refresh:1:aa"]}]
    assert named_fields(section("Freed keys in JSON")) == set(again[0])
    assert "was not held" in call(app, "dedup", "free", "shop.refresh:1:aa").stderr


def test_all_keys_of_a_task_are_freed_when_it_is_meant(app: Celery, store: WindowStore) -> None:
    refused = call(app, "dedup", "free", "--task", "shop.refresh")
    assert refused.exit_code == 1
    assert "nobody is there to confirm" in refused.stderr
    assert len(keys(store)) == 3
    assert call(app, "dedup", "free", "--task", "shop.refresh", "--yes").exit_code == 0
    assert keys(store) == {"shop.report:1:cc"}


@pytest.mark.parametrize("words", [(), ("shop.report:1:cc", "--task", "shop.report")])
def test_it_is_either_keys_or_a_task(app: Celery, store: WindowStore, words: tuple[str, ...]) -> None:
    assert call(app, "dedup", "free", *words).exit_code == 2
    assert len(keys(store)) == 3
