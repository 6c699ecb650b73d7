"""A plan as YAML: the templates beside this file, filled in. Pure, apart from reading them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import Final

from celery_hardened.kubernetes import plan as rules
from celery_hardened.kubernetes.plan import Plan

_SEPARATOR: Final = "---\n"

#: What means something in a regular expression of Prometheus.
_SPECIAL: Final = re.compile(r"[\\.+*?()|\[\]{}^$]")


def manifests(plan: Plan) -> str:
    """All objects of *plan*, one YAML document each, with comments that say why."""
    return _SEPARATOR.join(_documents(plan))


def _documents(plan: Plan) -> Iterator[str]:
    common = _common(plan)
    for group in plan.groups:
        values = {**common, **_of(plan, group)}
        yield _filled("worker", values)
        if plan.autoscaler != "none":
            yield _filled(plan.autoscaler, {**values, "age": _age(plan, values)})
    yield _filled("beat", common)
    yield _filled("exporter", common)
    if plan.scraping == "podmonitor":
        yield _filled("podmonitor", common)
    if plan.autoscaler == "hpa":
        yield _filled("adapter", {**common, "age": _age(plan, common, of="adapter")})


def _age(plan: Plan, values: dict[str, object], of: str = "") -> str:
    """The part of a scaler, or *of* what it asks, that is about the oldest message; or why there is none."""
    if plan.ages:
        return _filled(f"{of or plan.autoscaler}_age", values)
    return "" if of else "    # None for the oldest message's age: on this broker the exporter does not tell it.\n"


def _common(plan: Plan) -> dict[str, object]:
    return {
        "name": plan.name,
        "namespace": plan.namespace,
        "image": _quoted(plan.image),
        "module": _quoted(plan.module),
        "port": plan.port,
        "all_queues": _quoted(",".join(queue for group in plan.groups for queue in group)),
        "beats": plan.beats,
        "scheduler": _quoted(plan.scheduler),
        "short_grace": rules.SHORT_GRACE,
        "live_every": rules.LIVE_EVERY,
        "live_failures": rules.LIVE_FAILURES,
        "dead_after": plan.dead_after,
        "scrape_every": rules.SCRAPE_EVERY,
        "backlog": rules.BACKLOG,
        "annotations": _annotations(plan),
    }


def _of(plan: Plan, group: Sequence[str]) -> dict[str, object]:
    return {
        "workers": plan.workers(group),
        "queues": _quoted(",".join(group)),
        "queue_list": json.dumps(list(group)),
        "matching": _matching(plan.namespace, group),
        # A number beside a scaler would be set again by every apply, whatever the scaler had come to.
        "replicas": "" if plan.autoscaler != "none" else f"  replicas: {plan.least}\n",
        "concurrency": plan.concurrency,
        "grace": plan.grace,
        "margin": rules.MARGIN,
        "memory": plan.memory,
        "least": plan.least,
        "most": plan.most,
        "settle": plan.settle,
        "target_age": plan.target_age,
        "prometheus": _quoted(plan.prometheus),
    }


def _matching(namespace: str, group: Sequence[str]) -> str:
    """The series of these queues, in PromQL: another namespace's queues may have the same names."""
    regex = "|".join(_SPECIAL.sub(r"\\\g<0>", queue) for queue in group)
    return f"namespace={json.dumps(namespace)}, queue=~{json.dumps(regex)}"


def _annotations(plan: Plan) -> str:
    if plan.scraping != "annotations":
        return "{}"
    return json.dumps(
        {"prometheus.io/scrape": "true", "prometheus.io/port": str(plan.port), "prometheus.io/path": "/metrics"}
    )


def _quoted(text: str) -> str:
    """As YAML reads it, whatever *text* holds: JSON is YAML."""
    return json.dumps(text)


def _filled(template: str, values: dict[str, object]) -> str:
    return _template(template).substitute({name: str(value) for name, value in values.items()})


@cache
def _template(name: str) -> Template:
    return Template(files(__package__).joinpath(f"{name}.yaml").read_text("utf-8"))
