"""The lines of a ``Procfile``: ``name: command``, with ``$VARIABLES``, and without a shell."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from string import Template


def parse(text: str) -> dict[str, str]:
    """Commands by name, in their order. Empty lines and comments are left out."""
    lines = [line.strip() for line in text.splitlines()]
    pairs = [line.partition(":") for line in lines if line and not line.startswith("#")]
    return {name.strip(): command.strip() for name, _, command in pairs}


def argv(command: str, environment: Mapping[str, str]) -> list[str]:
    """Words of *command*, with its variables filled in.

    Raises:
        KeyError: It names a variable that is not there.
    """
    return [Template(word).substitute(environment) for word in shlex.split(command)]


def read(path: Path) -> dict[str, str]:
    return parse(path.read_text())
