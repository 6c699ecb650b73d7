from __future__ import annotations

from typing import Any

#: Views that a test put here, by path.
urlpatterns: list[Any] = []
