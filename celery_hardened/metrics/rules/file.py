"""The file that Prometheus reads: all rules, as YAML. Pure.

Written by hand, since nothing that a worker needs brings a YAML library. Strings of JSON are strings of YAML.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final

from celery_hardened.metrics.rules.beat import beat_rules
from celery_hardened.metrics.rules.queues import queue_rules
from celery_hardened.metrics.rules.rabbitmq import rabbitmq_rules
from celery_hardened.metrics.rules.rule import Group, Rule, indented
from celery_hardened.metrics.rules.tasks import task_rules
from celery_hardened.metrics.rules.terms import Terms
from celery_hardened.metrics.rules.workers import worker_rules

GROUPS: Final[tuple[Callable[[Terms], Group], ...]] = (
    queue_rules,
    task_rules,
    worker_rules,
    beat_rules,
    rabbitmq_rules,
)

#: Where the alerts are explained, in our documentation.
PAGE: Final = "docs/reference/alerts.md"

_HEAD: Final = """\
# Alerts on Celery with celery_hardened{of}, for Prometheus: `rule_files: [...]`.
# Printed by `celery -A {app} hardened alerts`, which fills in other thresholds, queues and matchers.
# What each means, and what to do: {page}
"""


def groups_of(terms: Terms) -> list[Group]:
    """The groups that *terms* ask for."""
    groups = [make(terms) for make in GROUPS]
    left_out = set()
    if terms.beat is False:
        left_out.add("beat")
    if terms.broker == "redis":
        left_out.add("rabbitmq")
    return [group for group in groups if group.name not in left_out]


def alerts_file(terms: Terms) -> str:
    """The whole file."""
    app = terms.app or "proj"
    lines = [_HEAD.format(of=f" of {terms.app}" if terms.app else "", app=app, page=terms.runbook or PAGE), "groups:"]
    for group in groups_of(terms):
        name = "-".join(part for part in ("celery-hardened", terms.app, group.name) if part)
        lines += [f"- name: {_quoted(name)}", "  rules:"]
        for rule in group.rules:
            lines += [indented(line, 2) for line in _rule(rule, terms)]
    return "\n".join(lines) + "\n"


def _rule(rule: Rule, terms: Terms) -> Iterator[str]:
    yield f"- alert: {rule.name}"
    yield f"  expr: |\n{indented(rule.expr, 4)}"
    if rule.wait:
        yield f"  for: {terms.time(rule.wait)}"
    labels = {"severity": rule.severity, **({"app": terms.app} if terms.app else {})}
    yield "  labels:"
    yield from (f"    {name}: {_quoted(value)}" for name, value in labels.items())
    yield "  annotations:"
    yield f"    summary: {_quoted(rule.summary)}"
    yield f"    description: {_quoted(commands(rule.do, terms))}"
    if terms.runbook:
        yield f"    runbook_url: {_quoted(f'{terms.runbook}#{rule.name.lower()}')}"


def commands(text: str, terms: Terms) -> str:
    """*text* with its commands as they are typed for the app of *terms*."""
    app = terms.app or "proj"
    return text.replace("`hardened ", f"`celery -A {app} hardened ").replace("-A PROJ", f"-A {app}")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
