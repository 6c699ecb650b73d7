from __future__ import annotations

from celery_hardened.cli.switch import OFF_MEANS
from celery_hardened.switches import SWITCHES
from tests.support.cli import answers, call, make_app


def test_switches_are_thrown_and_cleared() -> None:
    """``set`` says who and why, ``list`` shows it, ``clear`` brings the default back."""
    app = make_app()
    assert call(app, "switch", "set", "retries", "off", "--why", "gateway is down", "--by", "ann@host").exit_code == 0

    retries, parking = answers(call(app, "switch", "list", "--json"))
    assert retries.pop("at") > 0
    assert retries == {"name": "retries", "on": False, "set": True, "by": "ann@host", "why": "gateway is down"}
    assert parking == {"name": "parking", "on": True, "set": False, "by": None, "why": None, "at": None}
    shown = call(app, "switch", "list").stdout
    assert "OFF" in shown
    assert "gateway is down" in shown

    assert call(app, "switch", "clear", "retries").exit_code == 0
    assert answers(call(app, "switch", "list", "--json"))[0]["set"] is False


def test_what_is_no_switch_is_wrong_usage() -> None:
    """Names and values are checked before anything is written; a reason is required."""
    app = make_app()
    assert call(app, "switch", "set", "gravity", "off", "--why", "x").exit_code == 2
    assert call(app, "switch", "set", "retries", "maybe", "--why", "x").exit_code == 2
    assert call(app, "switch", "set", "retries", "off").exit_code == 2
    assert not any(state["set"] for state in answers(call(app, "switch", "list", "--json")))


def test_every_switch_is_explained() -> None:
    """The list says of each switch what off means."""
    assert tuple(OFF_MEANS) == SWITCHES
