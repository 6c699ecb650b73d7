"""Two apps that share a prefix by mistake."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from celery_hardened.beat.leader_store import Holder
from celery_hardened.beat.leader_words import Words


@pytest.mark.parametrize(
    ("identity", "warned"),
    [({"host": "a", "pid": 1, "app": "billing"}, True), ({"host": "a", "pid": 1, "app": "shop"}, False), ({}, False)],
    ids=["another", "the-same", "not-known"],
)
def test_a_leader_of_another_app_is_said(
    identity: Mapping[str, object], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its schedules are fired and ours are not, and nothing else would tell."""
    words = Words()
    for _ in range(3):
        words.stands_by(Holder(0.0, "token", "", 1, identity, 5.0), "shop")
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(found) == int(warned)
    if warned:
        assert "'billing'" in found[0]
        assert "hardened_key_prefix" in found[0]
