"""Asking a process how it is, as an orchestrator would."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.until import until

#: The text of the app that most health tests run.
HEALTH = Path(__file__).with_name("health_app.py").read_text()


@dataclass(frozen=True)
class Asked:
    """What one probe said."""

    status: int
    body: dict[str, Any]

    @property
    def good(self) -> bool:
        return self.status == 200


class Probed:
    """The process whose probe files are in *folder*: give that to it as ``HARDENED_HEALTH_DIR``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {"HARDENED_HTTP": "127.0.0.1:0", "HARDENED_HEALTH_DIR": str(folder)}

    @property
    def url(self) -> str:
        """Where it answers, when it does."""

        def told() -> str:
            return (self.folder / "http").read_text().strip()

        return until(told, within=60, what="the process to say where it answers")

    def ask(self, name: str) -> Asked:
        """``livez``, ``readyz`` or ``startupz``. Raises ``OSError`` if nobody answers."""
        try:
            with urllib.request.urlopen(self.url + name, timeout=10) as answer:
                return Asked(answer.status, json.load(answer))
        except urllib.error.HTTPError as refusal:
            return Asked(refusal.code, json.load(refusal))

    def metrics(self) -> str:
        with urllib.request.urlopen(self.url + "metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def wait(self, name: str, *, good: bool, within: float = 60.0) -> Asked:
        """Until that probe is green, or red."""
        found: list[Asked] = []

        def so() -> bool:
            found[:] = [self.ask(name)]
            return found[0].good is good

        try:
            until(so, within=within, what=f"/{name} to be {'green' if good else 'red'}")
        except AssertionError as late:
            raise AssertionError(f"{late}; it says {found}") from late
        return found[0]
