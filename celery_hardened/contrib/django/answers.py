"""What strangers wrote, as an answer to a browser may have it: names, errors and arguments may hold anything."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from io import StringIO

#: Characters with which a spreadsheet takes the text of a cell for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def cell(value: object) -> str:
    """*value* as a spreadsheet shows it and does not run it."""
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def csv_line(values: Iterable[object]) -> str:
    """*values* as one line of CSV, its end included."""
    line = StringIO()
    csv.writer(line).writerow([cell(value) for value in values])
    return line.getvalue()


def encoded(text: str) -> bytes:
    """*text* as UTF-8; a lone surrogate, which JSON may hold and no encoding has, as ``\\ud800``."""
    return text.encode("utf-8", "backslashreplace")
