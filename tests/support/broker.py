"""A broker as a test sees it: one virtual host or database and one queue of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from tests.support.rabbitmq import RabbitMQ
from tests.support.redis_server import RedisServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Where one test publishes and consumes. Nothing else is there."""

    kind: Literal["redis", "rabbitmq"]

    url: str
    """What Celery's ``broker_url`` takes."""

    queue: str
    """Name of the queue, used by this test alone."""

    server: RedisServer | RabbitMQ
    """The process behind it. Only that of ``mortal_broker`` may be harmed."""

    @property
    def port(self) -> int:
        """Where the server listens."""
        assert self.server.port is not None
        return self.server.port

    def at(self, port: int) -> Broker:
        """The same broker reached by another port: through a proxy."""
        return replace(self, url=re.sub(r":\d+/", f":{port}/", self.url, count=1))
