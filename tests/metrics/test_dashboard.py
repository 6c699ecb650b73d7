"""The dashboard is one that Grafana takes: its ids, places, variables and expressions."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from celery_hardened.metrics.catalogue import ALL
from celery_hardened.metrics.dashboard import ROWS, dashboard
from tests.fixtures.servers import missing

PANELS: list[dict[str, Any]] = dashboard()["panels"]
SHOWN = [panel for panel in PANELS if panel["type"] != "row"]

#: Units by the ids that Grafana has.
UNITS = {"short", "s", "ops", "percentunit"}


def test_ids_are_unique() -> None:
    """Grafana mixes panels up that share an id, and queries that share a letter."""
    ids = [panel["id"] for panel in PANELS]
    assert len(ids) == len(set(ids))
    for panel in SHOWN:
        letters = [target["refId"] for target in panel["targets"]]
        assert letters
        assert len(letters) == len(set(letters))


def test_no_panel_lies_upon_another() -> None:
    """All are within the 24 columns, and none covers another's place."""

    def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        return set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))

    for one, other in itertools.combinations(PANELS, 2):
        assert not cells(one) & cells(other), (one["title"], other["title"])


def test_rows_hold_their_panels() -> None:
    """Panels stand below the heading of their row, in its order."""
    titles = [panel["title"] for panel in PANELS]
    assert titles == [name for row in ROWS for name in (row.title, *(panel.title for panel in row.panels))]
    tops = [panel["gridPos"]["y"] for panel in PANELS]
    assert tops == sorted(tops)


@pytest.mark.parametrize("panel", SHOWN, ids=lambda panel: panel["title"])
def test_a_panel_explains_itself(panel: dict[str, Any]) -> None:
    """It says what it shows, in a unit that Grafana has, by series that have names."""
    assert panel["description"]
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    for target in panel["targets"]:
        assert 'namespace=~"$namespace"' in target["expr"]
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert label == "instance" or f'"{label}"' in str(target) or label in target["expr"]


def test_variables_are_used_and_defined() -> None:
    """Each variable of an expression is defined, and each that is defined is used."""
    made = dashboard()
    defined = {variable["name"] for variable in made["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(made)))
    assert {name for name in used if not name.startswith("__")} == defined


def test_every_metric_is_shown() -> None:
    """Each family of the catalogue is on some panel."""
    said = json.dumps(PANELS)
    assert [family.name for family in ALL if family.name not in said] == []


def test_no_metric_is_shown_that_does_not_exist() -> None:
    """Names are the catalogue's, a histogram's buckets included."""
    known = {family.name for family in ALL} | {f"{family.name}_bucket" for family in ALL if family.buckets}
    assert set(re.findall(r"celery_hardened_\w+", json.dumps([panel["targets"] for panel in SHOWN]))) <= known


def test_every_expression_parses(tmp_path: Path) -> None:
    """Prometheus' own parser takes each of them."""
    if shutil.which("promtool") is None:
        missing("promtool")
    rules = [
        {"record": f"panel:{panel['id']}:{target['refId']}", "expr": re.sub(r"\$__\w+", "5m", target["expr"])}
        for panel in SHOWN
        for target in panel["targets"]
    ]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_asked_for_is_there() -> None:
    """A title, and a Prometheus that is named rather than chosen."""
    made = dashboard("Ours", "abc123", "ours")
    assert (made["title"], made["uid"]) == ("Ours", "ours")
    assert {panel["datasource"]["uid"] for panel in made["panels"] if panel["type"] != "row"} == {"abc123"}
    assert "datasource" not in {variable["name"] for variable in made["templating"]["list"]}
