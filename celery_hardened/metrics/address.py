"""Where a process answers over HTTP: what may be written for it, and what it means. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from celery_hardened.errors import ConfigurationError

_FORMS = "Write a port (9808), host:port (127.0.0.1:9808) or [IPv6]:port ([::1]:9808). Port 0 is any that is free."


@dataclass(frozen=True)
class Address:
    """A place to listen at.

    Args:
        host: A name or a number, IPv6 without brackets. ``""``: all interfaces.

        port: 0 is any that is free.
    """

    host: str
    port: int

    @property
    def url(self) -> str:
        """How a process of this host reaches it."""
        host = self.host if self.host not in ("", "0.0.0.0", "::") else "127.0.0.1"  # noqa: S104 - not bound here
        return f"http://[{host}]:{self.port}/" if ":" in host else f"http://{host}:{self.port}/"

    @classmethod
    def parse(cls, given: str | int, *, named: str = "hardened_http") -> Address:
        """Read a port, ``host:port`` or ``[IPv6]:port``.

        Args:
            named: Where it was written, for the message.

        Raises:
            ConfigurationError: It is none of these.
        """
        text = str(given).strip()
        host, _, port = text.rpartition(":")
        if isinstance(given, bool) or not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise ConfigurationError(f"{named}={given!r} is no address. {_FORMS}")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host or "[" in host or "]" in host:
            raise ConfigurationError(f"{named}={given!r}: an IPv6 address stands in brackets. {_FORMS}")
        elif "/" in host:
            raise ConfigurationError(f"{named}={given!r} is a URL. {_FORMS}")
        return cls("" if host == "*" else host, int(port))
