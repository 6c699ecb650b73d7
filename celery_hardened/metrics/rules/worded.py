"""A rule's own words with a value filled in, for who shows the same problem without Prometheus. Pure.

Of the templates of Prometheus, what our rules use and no more; the rest is a ``ValueError``, which a test meets
before a reader does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from celery_hardened.metrics.rules.file import commands, groups_of
from celery_hardened.metrics.rules.rule import Rule, Severity
from celery_hardened.metrics.rules.terms import Terms

_ACTION: Final = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_IF_MORE: Final = re.compile(r"\{\{ if gt \$value ([\d.]+) \}\}(.*?)\{\{ end \}\}")
_WITH_LABEL: Final = re.compile(r"\{\{ with \$labels\.(\w+) \}\}(.*?)\{\{ else \}\}(.*?)\{\{ end \}\}")


@dataclass(frozen=True, slots=True)
class Worded:
    """What an alert would say."""

    name: str
    severity: Severity
    summary: str
    do: str
    """What to do about it; commands stand in backticks."""


@lru_cache(maxsize=8)
def _rules(terms: Terms) -> Mapping[str, Rule]:
    return {rule.name: rule for group in groups_of(terms) for rule in group.rules}


def worded(name: str, terms: Terms, labels: Mapping[str, str] | None = None, value: float = 0.0) -> Worded:
    """The rule *name* of *terms*, as it is told of the series with *labels* and *value*.

    Raises:
        KeyError: There is no such rule, or it names a label that is not given.
        ValueError: It has an action that is not known here.
    """
    rule = _rules(terms)[name]
    given = labels or {}
    do = commands(_filled(rule.do, given, value), terms)
    return Worded(rule.name, rule.severity, _filled(rule.summary, given, value), do)


def _filled(text: str, labels: Mapping[str, str], value: float) -> str:
    text = _IF_MORE.sub(lambda found: found[2] if value > float(found[1]) else "", text)
    text = _WITH_LABEL.sub(lambda found: _with(found, labels), text)
    return _ACTION.sub(lambda found: _said(found[1], labels, value), text)


def _with(found: re.Match[str], labels: Mapping[str, str]) -> str:
    name = found[1]
    return found[2].replace("{{ . }}", "{{ $labels." + name + " }}") if labels.get(name) else found[3]


def _said(action: str, labels: Mapping[str, str], value: float) -> str:
    if action.startswith("$labels."):
        return labels[action.removeprefix("$labels.")]
    if action == "$value":
        return f"{value:g}"
    if action == "$value | humanizeDuration":
        return span(value)
    if action == '$value | printf "%.0f"':
        return f"{value:.0f}"
    if action == "$value | humanizePercentage":
        return f"{100 * value:.4g}%"
    raise ValueError(f"{{{{ {action} }}}} is an action that is not known here")


def span(seconds: float) -> str:
    """As Prometheus words a duration: ``1h 2m 3s``."""
    left = round(max(0.0, seconds))
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        number, left = divmod(left, size)
        if number or parts:
            parts.append(f"{number}{unit}")
    return " ".join([*parts, f"{left}s"])
