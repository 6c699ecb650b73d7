"""A worker's word about itself is its own: a child that was forked from it takes no leave for it."""

from __future__ import annotations

import os
from types import SimpleNamespace

from celery import Celery
from celery.concurrency.solo import TaskPool

from celery_hardened import Hardening, harden
from celery_hardened.attendance.store import Keys, WorkerStore
from celery_hardened.pipeline.attendance import Attendance
from tests.support.until import until


class Worker(SimpleNamespace):
    """As much of a ``WorkController`` as is looked at; weakly referred to, as one is."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def test_a_forked_child_takes_no_leave(records_url: str, unique: str) -> None:
    """It has the worker's exit handlers, and neither its thread nor its connection."""
    app = Celery("shop", broker=records_url, set_as_current=False)
    app.conf.hardened_key_prefix = unique
    harden(app)
    hardening = Hardening.expect(app)
    worker = Worker(app=app, hostname="w1@test", pool=None, pool_cls=TaskPool, concurrency=1, consumer=None)
    attendance = Attendance(hardening, worker)
    store = WorkerStore(hardening.redis, Keys(hardening.prefix))
    attendance.start()
    try:
        until(lambda: store.read().present, within=30, what="its first word")
        child = os.fork()
        if child == 0:
            attendance.stop()
            os._exit(int(attendance._stopping))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [one.record.pid for one in store.read().present] == [os.getpid()]
    finally:
        attendance.stop()
    # A thread that stands still is waited for by the end of a worker for two seconds, and here until it has spoken.
    until(lambda: not store.read().present, within=30, what="its leave")
    app.close()
