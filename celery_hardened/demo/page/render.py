"""Numbers as one page of HTML without anything beside it. Pure, apart from reading the template.

All that was written by a task or came with a message is escaped here, and the page's own policy lets no script run
but the one it came with.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Final

from celery_hardened.demo.page.numbers import LeaderRow, LetterRow, Numbers, ProcessRow, TaskRow
from celery_hardened.metrics.outcome import FAILED

_STATES: Final = {"ready": "good", "alive": "wait", "starting": "wait", "silent": "bad"}
_TONES: Final = {"success": "good", "replayed": "good", "retry": "wait", "waited": "wait"}

#: Characters of an error that are shown.
_ERROR: Final = 120


def page(numbers: Numbers) -> str:
    """The whole page."""
    return _template().substitute(main=main(numbers))


def main(numbers: Numbers) -> str:
    """What changes."""
    return "".join(
        [
            f'<p class="now">{numbers.elapsed:.0f} s · <span data-scene>{escape(numbers.scene)}</span></p>',
            _tiles(numbers),
            '<div class="cards">',
            _card("Queues", _queues(numbers)),
            _card("Tasks, by how their deliveries ended", _tasks(numbers.tasks)),
            _card("Open dead letters", _letters(numbers), "letters"),
            _card("Beat", _leader(numbers.leader)),
            _card("Processes", _processes(numbers.processes)),
            "</div>",
        ]
    )


def _tiles(of: Numbers) -> str:
    tiles = (
        ("sent", "sent", of.sent, ""),
        ("succeeded", "succeeded", of.ended("success"), "good"),
        ("retried", "retries", of.ended("retry"), "wait"),
        ("letters", "dead letters", of.open_letters, "bad"),
        ("waiting", "waiting", of.waiting, ""),
    )
    return '<ul class="tiles">{}</ul>'.format(
        "".join(
            f'<li><b class="{tone}" data-count="{name}">{count}</b><span>{label}</span></li>'
            for name, label, count, tone in tiles
        )
    )


def _queues(of: Numbers) -> str:
    rows = [
        (
            escape(queue.name),
            str(queue.waiting),
            "–" if queue.oldest is None or not queue.waiting else f"{queue.oldest:.1f} s",  # noqa: RUF001
        )
        for queue in of.queues
    ]
    return (
        _table(("queue", "waiting", "oldest"), rows, "no queue was read yet")
        + f"<p>In all queues: <b data-count=unacked>{_or_dash(of.unacked)}</b> with workers, "
        f"<b data-count=delayed>{_or_dash(of.delayed)}</b> delayed.</p>"
    )


def _tasks(tasks: Sequence[TaskRow]) -> str:
    def chip(outcome: str, count: int) -> str:
        tone = "bad" if outcome in FAILED else _TONES.get(outcome, "")
        return f'<span class="chip {tone}" data-outcome="{escape(outcome)}">{escape(outcome)} <b>{count}</b></span>'

    lines = (
        f'<li data-task="{escape(task.name)}"><code>{escape(task.name)}</code><span class="chips">'
        + " ".join(chip(outcome, count) for outcome, count in sorted(task.outcomes.items(), key=_as_a_person_looks))
        + "</span></li>"
        for task in tasks
    )
    return _list(lines, "none has ended yet")


def _as_a_person_looks(item: tuple[str, int]) -> tuple[bool, bool, str]:
    """Good ones first, bad ones last."""
    outcome, _ = item
    return outcome in FAILED, outcome != "success", outcome


def _letters(of: Numbers) -> str:
    rows = [
        (escape(queue or "–"), escape(reason), str(count))  # noqa: RUF001
        for (queue, reason), count in sorted(of.letters.items(), key=lambda item: -item[1])
    ]
    latest = (_latest(letter) for letter in of.latest)
    return _table(("queue", "reason", "letters"), rows, "none") + (
        f"<h3>The latest</h3>{_list(latest, 'none')}" if of.latest else ""
    )


def _latest(letter: LetterRow) -> str:
    error = letter.error if len(letter.error) <= _ERROR else f"{letter.error[:_ERROR]}…"
    return (
        f'<li><span class="at">{letter.at:.1f} s</span> <code>{escape(letter.task or "–")}</code> '  # noqa: RUF001
        f'{escape(letter.task_id)} <span class="chip bad">{escape(letter.reason)}</span>'
        f'<span class="error">{escape(error)}</span></li>'
    )


def _leader(leader: LeaderRow | None) -> str:
    if leader is None:
        return '<p class="none">nobody leads yet</p>'
    return (
        f"<p>Process <b data-count=leader>{escape(leader.pid)}</b> leads, term <b data-count=term>{leader.term}</b>, "
        f"for {leader.since:.0f} s; {leader.left:.1f} s of its lease are left.</p>"
    )


def _processes(processes: Sequence[ProcessRow]) -> str:
    def line(of: ProcessRow) -> str:
        runs = f" · {of.active} of {of.places} busy" if of.places else ""
        lost = f" · {of.children_lost} children lost" if of.children_lost else ""
        return (
            f'<li data-process="{escape(of.name)}"><code>{escape(of.name)}</code> '
            f'<span class="chip {_STATES.get(of.state, "")}">{escape(of.state)}</span> '
            f'{escape(of.kind)} {of.pid}{runs}{lost}<span class="error">{escape(of.because)}</span></li>'
        )

    return _list(map(line, processes), "none was started yet")


def _card(title: str, content: str, name: str = "") -> str:
    return f'<section class="{name}"><h2>{title}</h2>{content}</section>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> str:
    if not rows:
        return f'<p class="none">{empty}</p>'
    head = "".join(f"<th scope=col>{column}</th>" for column in columns)
    body = "".join("<tr>{}</tr>".format("".join(f"<td>{cell}</td>" for cell in row)) for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _list(lines: Iterable[str], empty: str) -> str:
    found = "".join(lines)
    return f'<ul class="rows">{found}</ul>' if found else f'<p class="none">{empty}</p>'


def _or_dash(number: int | None) -> str:
    return "–" if number is None else str(number)  # noqa: RUF001


@cache
def _template() -> Template:
    text = files(__package__).joinpath("page.html").read_text("utf-8")
    for kind in ("style", "script"):
        (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        text = text.replace(f"{kind}-hash", f"sha256-{digest}")
    return Template(text)
