"""What the audience sees: plain text of at most 80 columns, coloured on a terminal that wants it."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Final, TextIO

from celery_hardened.demo.line import Line

_WIDEST: Final = 80

#: Columns before the text of a line of the summary.
_INDENT: Final = 24

_CODES: Final = {"title": "1", "quiet": "2", "good": "32", "bad": "31", "wait": "33", "command": "36"}

#: What the pretty signs become where the terminal's encoding lacks them.
_ASCII: Final = {"─": "-", "✓": "+", "✗": "x", "…": "~", "·": "-", "–": "-", "×": "x"}  # noqa: RUF001


class Screen:
    """Writes to *stream*, each line at once."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str]) -> None:
        self._stream = stream
        self._width = max(40, min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns))
        self._color = stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self._blank = False
        self._signs = str.maketrans({} if _can_show(stream, "".join(_ASCII)) else _ASCII)

    def title(self, text: str) -> None:
        """The first line."""
        self._write(self._styled(text, "title"))
        self._write("")

    def paragraph(self, text: str) -> None:
        """Running text, wrapped."""
        for line in textwrap.wrap(text, self._width - 2):
            self._write(f"  {line}")
        self._write("")

    def heading(self, text: str) -> None:
        """The title of a part."""
        self._write("")
        self._write(self._styled(f"{text} ", "title") + self._styled("─" * (self._width - len(text) - 1), "quiet"))

    def moment(self, seconds: float, who: str, what: str, tone: str = "") -> None:
        """Something that just happened."""
        head = f"{seconds:6.1f} s  {who:<11}  "
        self._write(self._styled(head, "quiet") + self._styled(self._cut(what, len(head)), tone))

    def command(self, text: str) -> None:
        """A command that is being run."""
        self._write("")
        self._write(self._styled(self._cut(f"  $ {text}"), "command"))

    def output(self, text: str) -> None:
        """What a command said; what is too wide is cut."""
        for line in text.splitlines():
            self._write(self._cut(f"  {line}"))
        self._write("")

    def lines(self, lines: Sequence[Line]) -> None:
        """Lines of the summary."""
        self._write("")
        for line in lines:
            self._line(line)

    def verdict(self, text: str, *, good: bool) -> None:
        """The last line."""
        self._write("")
        self._write(self._styled(text, "good" if good else "bad"))

    def _line(self, line: Line) -> None:
        # Not by its colour alone: a line that does not hold says so in words.
        sign, tone, seen = ("✓", "", line.seen) if line.true else ("✗", "bad", f"NOT TRUE: {line.seen}")
        first, *more = textwrap.wrap(seen, self._width - _INDENT) or [""]
        self._write(f"  {self._styled(sign, tone or 'good')}  {line.subject:<18} {self._styled(first, tone)}")
        for rest in more:
            self._write(" " * _INDENT + self._styled(rest, tone))

    def _cut(self, text: str, before: int = 0) -> str:
        room = self._width - before
        return text if len(text) <= room else f"{text[: room - 1]}…"

    def _styled(self, text: str, tone: str) -> str:
        return f"\033[{_CODES[tone]}m{text}\033[0m" if self._color and tone and text else text

    def _write(self, line: str) -> None:
        if not line and self._blank:
            return
        self._blank = not line
        self._stream.write(f"{line.translate(self._signs).rstrip()}\n")
        self._stream.flush()


def _can_show(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
