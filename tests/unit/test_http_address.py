"""What may be written for ``hardened_http``."""

from __future__ import annotations

import pytest

from celery_hardened.errors import ConfigurationError
from celery_hardened.metrics.address import Address


@pytest.mark.parametrize(
    ("given", "host", "port", "url"),
    [
        (9808, "", 9808, "http://127.0.0.1:9808/"),
        ("9808", "", 9808, "http://127.0.0.1:9808/"),
        (0, "", 0, "http://127.0.0.1:0/"),
        (" 127.0.0.1:9808 ", "127.0.0.1", 9808, "http://127.0.0.1:9808/"),
        ("localhost:1", "localhost", 1, "http://localhost:1/"),
        ("[::1]:9808", "::1", 9808, "http://[::1]:9808/"),
        ("[::]:9808", "::", 9808, "http://127.0.0.1:9808/"),
        ("0.0.0.0:9808", "0.0.0.0", 9808, "http://127.0.0.1:9808/"),
        ("*:9808", "", 9808, "http://127.0.0.1:9808/"),
        (":9808", "", 9808, "http://127.0.0.1:9808/"),
    ],
)
def test_addresses(given: str | int, host: str, port: int, url: str) -> None:
    """A port alone is all interfaces; IPv6 stands in brackets; the URL is one that this host can open."""
    address = Address.parse(given)
    assert (address.host, address.port, address.url) == (host, port, url)


@pytest.mark.parametrize(
    "given", ["", "localhost", "http://localhost:9808", "::1:9808", "[::1]", "127.0.0.1:", "1:70000", -1, True, "1:x"]
)
def test_no_addresses(given: str | int) -> None:
    """Whatever else is refused by a sentence that says where it stands, what it is, and what may stand there."""
    with pytest.raises(ConfigurationError, match=r"\$HARDENED_HTTP=.*Write a port|\$HARDENED_HTTP=.*brackets"):
        Address.parse(given, named="$HARDENED_HTTP")
