"""Metrics and probes of a process, over HTTP and as files: what is started where.

::

    worker      in its main process, before its pool is made: a probe of a worker that starts is answered
    beat        at its start; not the one in a worker (``worker -B``), whose worker answers
    exporter    by its command

One thread looks at the process each second, renews its probe files, and tries again to have its port if that was
taken: the worker before it may still be finishing its tasks.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from celery import signals

from celery_hardened.errors import ConfigurationError
from celery_hardened.hardening import Hardening
from celery_hardened.health.files import ProbeFiles
from celery_hardened.health.state import Answer, BeatFacts, Facts, Health, health_of, told, unknown
from celery_hardened.metrics.address import Address
from celery_hardened.metrics.catalogue import HTTP_FAILURES
from celery_hardened.metrics.render import Page
from celery_hardened.metrics.server import Probe, Route, Server, metrics_route, probe_route
from celery_hardened.pipeline.queue_metrics import attach_queues
from celery_hardened.pipeline.worker_health import WorkerHealth

logger = logging.getLogger("celery_hardened")

#: Seconds between two looks.
EVERY: Final = 1.0

#: Seconds between two tries to have a port that is taken.
AGAIN: Final = 5.0

#: Is there a worker in this process, or in the one that forked it?
_worker_here = False


def address_of(hardening: Hardening) -> Address | None:
    """Where this process answers: ``$HARDENED_HTTP``, else ``hardened_http``; an empty one is nowhere.

    Raises:
        ConfigurationError: It is no address.
    """
    named = os.environ.get("HARDENED_HTTP")
    if named is not None:
        return Address.parse(named, named="$HARDENED_HTTP") if named.strip() else None
    given = hardening.settings.http
    return None if given is None or given == "" else Address.parse(given)


def folder_of(hardening: Hardening) -> str | None:
    """Where its probe files go: ``$HARDENED_HEALTH_DIR``, else ``hardened_health_dir``."""
    named = os.environ.get("HARDENED_HEALTH_DIR")
    return (named if named is not None else hardening.settings.health_dir) or None


class Serving:
    """What one process tells of itself.

    Args:
        look: The facts of this moment. What it raises is logged, and ends nothing.

        address: Where to answer over HTTP; ``None``: nowhere.

        folder: Where probe files go; ``None``: nowhere.
    """

    def __init__(
        self, hardening: Hardening, look: Callable[[], Facts], *, address: Address | None, folder: str | None
    ) -> None:
        self._hardening = hardening
        self._look = look
        self._address = address
        self._files = ProbeFiles(folder) if folder is not None else None
        self._server: Server | None = None
        self._tried = float("-inf")
        self._complained = self._blind = False
        self._last: tuple[Health, Facts | None] | None = None
        self._stop = threading.Event()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="hardened-health", daemon=True)

    @property
    def url(self) -> str | None:
        """Where it answers, once it does."""
        return self._server.url if self._server is not None else None

    def start(self, *, required: bool = False) -> None:
        """Answer from now on.

        Args:
            required: It is what this process is for.

        Raises:
            ConfigurationError: It is required, and cannot be had.
        """
        self._hardening.metrics.keep_here()
        if self._address is not None:
            self._listen(required=required)
        self._write()
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Let go of the port, and remove the files. Twice changes nothing; in a child neither."""
        if os.getpid() != self._pid:
            return
        self._stop.set()
        if self._server is not None:
            self._server.stop()
        if self._files is not None:
            if self._thread.is_alive() and threading.current_thread() is not self._thread:
                self._thread.join(EVERY)  # it may be about to renew one
            self._files.remove()

    # --- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(EVERY):
            try:
                if self._address is not None and self._server is None and time.monotonic() - self._tried >= AGAIN:
                    self._listen()
                self._write()
            except Exception:
                logger.exception("a look at the health of this process failed")

    def _write(self) -> None:
        health, _ = self._examined()  # without files too: it is what notices since when something is missing
        if self._files is not None and not self._stop.is_set():
            self._files.write(health)

    def _listen(self, *, required: bool = False) -> None:
        assert self._address is not None  # noqa: S101 - for the types
        self._tried = time.monotonic()
        try:
            server = Server(self._address, self._routes())
            server.start()
        except OSError as problem:
            self._hardening.metrics.inc(HTTP_FAILURES)
            self._complain(problem, required=required)
            return
        self._server = server
        everywhere = "" if self._address.host not in ("", "::", "0.0.0.0") else ", all interfaces"  # noqa: S104
        logger.info("celery_hardened: metrics and health at %s%s", server.url, everywhere)
        if self._files is not None:
            self._files.tell_url(server.url)

    def _complain(self, problem: OSError, *, required: bool) -> None:
        assert self._address is not None  # noqa: S101 - for the types
        where = f"{self._address.host or '*'}:{self._address.port}"
        sentence = (
            f"metrics and health cannot be served at {where}: {problem.strerror or problem}. Give each process of a "
            f"host a port of its own by hardened_http or $HARDENED_HTTP; port 0 takes any that is free"
        )
        if required:
            raise ConfigurationError(f"{sentence}.") from problem
        if not self._complained:
            self._complained = True
            logger.error("%s. This process goes on without, and tries again every %g s", sentence, AGAIN)

    # --- what is answered ------------------------------------------------------------------------------------

    def _routes(self) -> dict[str, Route]:
        routes = {
            "/livez": probe_route(self._probe("live")),
            "/readyz": probe_route(self._probe("ready")),
            "/startupz": probe_route(self._probe("started")),
        }
        if self._hardening.settings.metrics:
            routes["/metrics"] = metrics_route(Page(self._hardening.metrics.registry))
        return routes

    def _probe(self, name: str) -> Probe:
        def probe() -> tuple[bool, dict[str, object]]:
            health, facts = self._examined()
            answer: Answer = getattr(health, name)
            return answer.good, told(answer, facts)

        return probe

    def _examined(self) -> tuple[Health, Facts | None]:
        try:
            facts = self._look()
            self._last = health_of(facts), facts
        except Exception as problem:
            # A fault of ours is no reason to have a worker restarted for ever: what was known last holds.
            if not self._blind:
                logger.exception("the health of this process cannot be told")
                self._blind = True
            return self._last or (unknown(problem), None)
        self._blind = False
        return self._last


# --- who serves ------------------------------------------------------------------------------------------------


def serve(
    hardening: Hardening,
    look: Callable[[], Facts],
    *,
    address: Address | None = None,
    required: bool = False,
) -> Serving | None:
    """Let this process tell of itself, where its settings say.

    Args:
        look: The facts of this moment.

        address: In place of the settings'.

        required: An address that cannot be had is an error.

    Returns:
        ``None`` if nowhere is where.

    Raises:
        ConfigurationError: The address is none; or it is required, and taken.
    """
    address, folder = address or address_of(hardening), folder_of(hardening)
    if address is None and folder is None:
        return None
    serving = Serving(hardening, look, address=address, folder=folder)
    serving.start(required=required)
    return serving


def serve_worker(hardening: Hardening, worker: Any) -> Serving | None:
    """Let *worker* tell of itself, from before its pool is made to its end. Raises ``ConfigurationError``."""
    global _worker_here
    _worker_here = True
    health = WorkerHealth(worker, stall=hardening.settings.health_stall)
    serving = serve(hardening, health.look)
    if serving is None:
        return None
    ends = [serving.stop]

    def on_ready(sender: Any = None, **_: Any) -> None:
        # Not earlier: its pool is forked by now, and no child has a copy of a connection that is in use.
        if getattr(sender, "controller", None) is worker:
            ends.append(_tell_queues(hardening))

    def on_shutdown(sender: Any = None, **_: Any) -> None:
        if sender is worker:
            while ends:
                ends.pop()()

    signals.worker_ready.connect(on_ready, weak=False)
    signals.worker_shutdown.connect(on_shutdown, weak=False)
    return serving


def serve_beat(hardening: Hardening, service: Any) -> Serving | None:
    """Let the beat of *service* (celery's) tell of itself, unless it is part of a worker. Raises
    ``ConfigurationError``."""
    from celery_hardened.pipeline.beat import LOOK, HardenedScheduler

    scheduler = service.scheduler
    if _worker_here or not isinstance(scheduler, HardenedScheduler):
        return None
    turned = time.monotonic()
    started = False
    tick = scheduler.tick

    def noted_tick(*args: Any, **options: Any) -> Any:
        nonlocal turned
        turned = time.monotonic()
        return tick(*args, **options)

    def look() -> BeatFacts:
        nonlocal started
        leadership = scheduler.beat.leadership
        started = started or leadership.reachable
        return BeatFacts(
            started=started,
            turned=time.monotonic() - turned,
            leads=leadership.standing() is not None,
            answered=leadership.reachable,
            problem=leadership.problem,
            longest=min(LOOK, scheduler.max_interval),
        )

    scheduler.tick = noted_tick  # type: ignore[method-assign]
    serving = serve(hardening, look)
    if serving is not None:
        atexit.register(_tell_queues(hardening))
    return serving


def _tell_queues(hardening: Hardening) -> Callable[[], None]:
    """Tell of the broker's queues too, if ``hardened_metrics_queues`` asks for it; returns how to end that."""
    if not hardening.settings.metrics_queues:
        return lambda: None
    return attach_queues(hardening)
