"""The app that most integration tests run: one task for each way to end.

Its text is copied into a worker's directory, so it imports nothing of the tests but
`tests.support.notes`. `SHOP` is that text.
"""

from __future__ import annotations

from pathlib import Path

SHOP = Path(__file__).with_name("shop_app.py").read_text()
