"""The dashboard, as code: what Grafana imports. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from celery_hardened.metrics.catalogue import PROCESS_START, QUEUE_WAITING
from celery_hardened.metrics.panels.panel import Panel, Row
from celery_hardened.metrics.panels.processes import ABOUT, BEAT_ROW, PRODUCER_ROW, WORKER_ROW
from celery_hardened.metrics.panels.work import LETTER_ROW, QUEUES, SIGNALS, TASK_ROW

ROWS: Final = (SIGNALS, QUEUES, TASK_ROW, WORKER_ROW, LETTER_ROW, BEAT_ROW, PRODUCER_ROW, ABOUT)

TITLE: Final = "Celery, hardened"

#: Grafana's columns, and how high panels of each kind are.
_COLUMNS: Final = 24
_HEIGHT: Final = {"stat": 4, "timeseries": 8, "table": 8}

#: Of Grafana 10; later ones convert it by themselves.
_SCHEMA: Final = 39


def dashboard(title: str = TITLE, datasource: str | None = None, uid: str = "celery-hardened") -> dict[str, Any]:
    """What Grafana imports.

    Args:
        datasource: UID of the Prometheus that is asked. ``None``: it is chosen on the dashboard.

        uid: Of the dashboard; a second one in the same Grafana needs another.
    """
    source = {"type": "prometheus", "uid": datasource or "${datasource}"}
    return {
        "uid": uid,
        "title": title,
        "tags": ["celery", "celery-hardened"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": list(_variables(source, chosen=datasource is None))},
        "annotations": {"list": []},
        "panels": list(_panels(source)),
    }


def _variables(source: dict[str, str], *, chosen: bool) -> Iterator[dict[str, Any]]:
    if chosen:
        yield {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}}
    here = 'namespace=~"$namespace"'
    for name, series in (
        ("namespace", PROCESS_START.name),
        ("job", f"{PROCESS_START.name}{{{here}}}"),
        ("queue", f"{QUEUE_WAITING.name}{{{here}}}"),
    ):
        query = f"label_values({series}, {name})"
        yield {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": source,
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,  # whenever the time range changes
            "sort": 1,
            "multi": True,
            "includeAll": True,
            # Also matches series without the label: not every Prometheus knows of namespaces.
            "allValue": ".*",
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        }


def _panels(source: dict[str, str]) -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for row in ROWS:
        number += 1
        yield _heading(row, number, top)
        top += 1
        left = height = 0
        for panel in row.panels:
            if left + panel.width > _COLUMNS:
                left, top, height = 0, top + height, 0
            number += 1
            place = {"x": left, "y": top, "w": panel.width, "h": _HEIGHT[panel.kind]}
            yield _panel(panel, number, place, source)
            left, height = left + panel.width, max(height, place["h"])
        top += height


def _heading(row: Row, number: int, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
    return {"id": number, "type": "row", "title": row.title, "gridPos": place, "collapsed": False, "panels": []}


def _panel(panel: Panel, number: int, place: dict[str, int], source: dict[str, str]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "gridPos": place,
        "datasource": source,
        "targets": [
            {
                "refId": chr(ord("A") + place_of),
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                "datasource": source,
                **({"instant": True, "range": False, "format": "table"} if panel.kind == "table" else {"range": True}),
            }
            for place_of, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
    }


def _field(panel: Panel) -> dict[str, Any]:
    colours: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.worst is not None:
        colours.append({"color": "red", "value": panel.worst})
    field: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": colours}}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        field["custom"] = {"fillOpacity": 25 if panel.stacked else 5, "stacking": stacking, "showPoints": "never"}
        field["min"] = 0
    return field


_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "graphMode": "area"},
    "timeseries": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    "table": {"showHeader": True, "sortBy": [{"displayName": "Value", "desc": True}]},
}
