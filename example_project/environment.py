"""What the environment says: where data is kept, and which servers are used. ``README.md`` lists the variables."""

import contextlib
import os
import secrets
from pathlib import Path
from urllib.parse import unquote, urlsplit

BASE = Path(__file__).resolve().parent

#: SQLite's file, the gateway's ledger, large arguments, the secret key.
FOLDER = Path(os.environ.get("EXAMPLE_FOLDER") or BASE / ".data").resolve()

REDIS = os.environ.get("EXAMPLE_REDIS") or "redis://127.0.0.1:6379/0"
BROKER = os.environ.get("EXAMPLE_BROKER") or REDIS

#: Where the payment gateway answers.
GATEWAY = os.environ.get("EXAMPLE_GATEWAY") or "http://127.0.0.1:8010"

#: Only of the web process (see Procfile): a worker that notes every statement it makes grows without end.
DEBUG = os.environ.get("EXAMPLE_DEBUG") == "yes"
HOSTS = os.environ.get("EXAMPLE_HOSTS", "127.0.0.1,localhost").split(",")


def database() -> dict:
    """``EXAMPLE_DATABASE``, a ``postgresql://`` URL; without it an SQLite file that bears several processes."""
    url = os.environ.get("EXAMPLE_DATABASE")
    if not url:
        return sqlite(FOLDER / "shop.sqlite3")
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql"):
        raise ValueError(f"EXAMPLE_DATABASE is a postgresql:// URL or empty, not {parts.scheme}://")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }


def sqlite(path: Path) -> dict:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {
            # Readers do not wait for the one writer.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            # Writers queue up when they begin, for so many seconds. A transaction that begins as a
            # reader and writes later is refused at once if another has written in between.
            "transaction_mode": "IMMEDIATE",
            "timeout": 30,
        },
    }


def secret_key() -> str:
    """``EXAMPLE_SECRET_KEY``; without it one that is drawn at the first start and kept in the folder."""
    given = os.environ.get("EXAMPLE_SECRET_KEY")
    if given:
        return given
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = FOLDER / "secret-key"
    drawn = FOLDER / f"secret-key.{os.getpid()}"
    if not kept.exists():
        drawn.touch(mode=0o600)
        drawn.write_text(secrets.token_urlsafe(50))
        with contextlib.suppress(FileExistsError):
            kept.hardlink_to(drawn)  # whole, and by one of all processes that start now
        drawn.unlink()
    return kept.read_text()
