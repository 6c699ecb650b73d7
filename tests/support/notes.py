"""What tasks leave behind for the test to read: lines in files of the ``OUT`` folder.

A worker's app module writes ``note("runs", task_id)``; the test reads
``notes(out, "runs")``. A line is one write, so a killed writer leaves none in half.
"""

from __future__ import annotations

import os
from pathlib import Path


def note(name: str, *words: object) -> None:
    """Append one line to the file *name* in ``$OUT``."""
    line = " ".join(str(word) for word in words) + "\n"
    descriptor = os.open(Path(os.environ["OUT"]) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def notes(out: Path, name: str) -> list[str]:
    """The lines written to *name* so far. One that is just being written, over the end of a page, is none yet."""
    path = out / name
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()
