"""The shop's side of the payment provider's API."""

import json
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from django.conf import settings


class GatewayError(Exception):
    """It did not answer, or said that it cannot. That passes by itself."""


class CardDeclinedError(GatewayError):
    """It answered, and the answer is no. That stays."""


def charge(reference, cents, *, key):
    """Charge *reference* and return the receipt. Asked again with the same *key*, the gateway charges nothing.

    Raises:
        CardDeclinedError: The card was declined.
        GatewayError: It did not answer in time, or is down. Whether it has charged is not known.
    """
    return _ask("POST", "/charges", {"reference": reference, "cents": cents}, {"Idempotency-Key": key})["receipt"]


def ledger(most=100):
    """How it behaves (``mode``), totals, and its newest charges (``entries``)."""
    return _ask("GET", f"/ledger?most={most}")


def switch(mode):
    """Have it behave so from now on. A real provider has no such thing."""
    _ask("PUT", "/mode", {"mode": mode})


def _ask(method, path, body=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    request = Request(settings.GATEWAY_URL + path, data, headers or {}, method=method)
    # Whatever proxy is set in the environment does not lead to our own machine.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(request, timeout=settings.GATEWAY_TIMEOUT) as answer:
            return json.load(answer)
    except HTTPError as answer:
        error = CardDeclinedError if answer.code == 402 else GatewayError
        raise error(f"the gateway says {answer.code}: {json.load(answer)['error']}") from None
    except (OSError, HTTPException) as problem:
        raise GatewayError(f"the gateway does not answer: {problem}") from problem
