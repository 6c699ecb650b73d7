"""How kombu's JSON writes a value, as lists, dicts, text and numbers."""

from __future__ import annotations

import json
from typing import Any

from kombu.utils.json import dumps


def plain(value: Any) -> Any:
    """*value* as it is in a message: whatever Celery can send has this form, so all of it can be keyed.

    Not decoded any further: a type registered with ``kombu.utils.json.register_type`` would come
    back as itself. Raises what kombu raises when the value cannot be sent.
    """
    return json.loads(dumps(value))
