"""The page while the demo runs: a thread that looks, and a server that shows what was seen last."""

from __future__ import annotations

import logging
import threading
from typing import Final

from celery_hardened.demo.page.look import Look
from celery_hardened.demo.page.numbers import Numbers
from celery_hardened.demo.page.render import page
from celery_hardened.metrics.address import Address
from celery_hardened.metrics.server import Answer, Server

logger = logging.getLogger(__name__)

#: Seconds between two looks.
EVERY: Final = 0.5

#: Seconds that a look may take to its end when the page is closed: everything it asks has a deadline.
_GRACE: Final = 10.0


class LivePage:
    """Shows what *look* sees, from its start to its stop. However many look at it, it costs the same.

    Args:
        address: Where; port 0 is any that is free.

    Raises:
        OSError: It cannot listen there.
    """

    def __init__(self, look: Look, address: Address) -> None:
        self._look = look
        self._last = Numbers()
        self._looking = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-page", daemon=True)
        self._server = Server(address, {"/": lambda _: Answer(self._html(), content_type="text/html; charset=utf-8")})

    @property
    def url(self) -> str:
        """Its address."""
        return self._server.url

    def start(self) -> None:
        """Begin to look, and to answer."""
        self._server.start()
        self._thread.start()

    def look(self) -> Numbers:
        """Look now: to be called before something is stopped whose last numbers count. Never raises."""
        with self._looking:
            try:
                self._last = self._look.now()
            except Exception as problem:
                logger.debug("the page could not be made anew: %r", problem, exc_info=problem)
            return self._last

    def stop(self) -> None:
        """End both. Twice changes nothing."""
        self._ending.set()
        self._server.stop()
        if self._thread.is_alive():
            self._thread.join(_GRACE)
        self._look.close()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._ending.wait(EVERY):
            self.look()

    def _html(self) -> bytes:
        return page(self._last).encode()
