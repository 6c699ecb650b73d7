"""A shop's tables by SQLAlchemy, beside our own."""

from __future__ import annotations

from typing import Any

from sqlalchemy import String, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from celery_hardened.idempotency.database_sqlalchemy import create_tables


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    """A row that a task writes."""

    __tablename__ = "shop_invoice"

    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[str] = mapped_column(String(200))
    note: Mapped[str] = mapped_column(String(200), default="")


class Shop:
    """An engine, its sessions, and what they wrote.

    Args:
        url: ``postgresql://`` (psycopg) or a path of SQLite.
        options: Of ``create_engine``.
    """

    def __init__(self, url: str, **options: Any) -> None:
        whole = url.replace("postgresql://", "postgresql+psycopg://") if "://" in url else f"sqlite:///{url}"
        self.engine = create_engine(whole, **options)
        self.sessions = sessionmaker(self.engine)

    def create(self) -> None:
        create_tables(self.engine)
        Base.metadata.create_all(self.engine)

    def effects(self, key: str) -> list[str]:
        """Rows of *key*, as text."""
        with self.sessions() as session:
            rows = session.scalars(select(Invoice).where(Invoice.number.startswith(key)))
            return sorted(f"{row.number.removeprefix(key)} {row.note}".strip() for row in rows)
