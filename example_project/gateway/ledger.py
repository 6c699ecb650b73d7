"""What was charged, by idempotency key, in a file that only the gateway writes to."""

import secrets
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS charge (
    key TEXT PRIMARY KEY, reference TEXT, cents INTEGER, receipt TEXT, at REAL, asked INTEGER
)
"""


class Ledger:
    """One row a charge. A key that was charged is answered with its receipt, however often it is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._open()) as file, file:
            file.execute(_SCHEMA)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)

    def charge(self, key: str, reference: str, cents: int) -> str:
        """Take the money, once for each key, and return the receipt."""
        with closing(self._open()) as file, file:
            row = file.execute(
                "INSERT INTO charge VALUES (?, ?, ?, ?, ?, 1) "
                "ON CONFLICT (key) DO UPDATE SET asked = asked + 1 RETURNING receipt",
                (key, reference, cents, f"R-{secrets.token_hex(4)}", time.time()),
            ).fetchone()
        return str(row[0])

    def entries(self, most: int) -> list[dict[str, Any]]:
        """The newest *most* charges."""
        with closing(self._open()) as file:
            file.row_factory = sqlite3.Row
            rows = file.execute("SELECT * FROM charge ORDER BY at DESC, key LIMIT ?", (most,)).fetchall()
        return [dict(row) for row in rows]

    def totals(self) -> dict[str, int]:
        """Charges and cents in all, how often it was asked, and references that were charged twice."""
        with closing(self._open()) as file:
            charges, cents, asked = file.execute(
                "SELECT count(*), coalesce(sum(cents), 0), coalesce(sum(asked), 0) FROM charge"
            ).fetchone()
            (twice,) = file.execute(
                "SELECT count(*) FROM (SELECT 1 FROM charge GROUP BY reference HAVING count(*) > 1)"
            ).fetchone()
        return {"charges": charges, "cents": cents, "asked": asked, "charged_twice": twice}
