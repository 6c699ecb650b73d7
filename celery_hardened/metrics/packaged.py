"""The files that come with the package, made from the code: ``python -m celery_hardened.metrics.packaged``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from celery_hardened.metrics.dashboard import dashboard
from celery_hardened.metrics.rules.file import alerts_file
from celery_hardened.metrics.rules.terms import Terms


def packaged() -> Iterator[tuple[Path, str]]:
    """Each file, with what has to be in it."""
    here = Path(__file__).parent
    yield here / "alerts.yml", alerts_file(Terms())
    yield here / "dashboard.json", json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    for path, text in packaged():
        path.write_text(text)
        sys.stdout.write(f"wrote {path}\n")
