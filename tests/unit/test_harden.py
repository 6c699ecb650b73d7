"""What ``harden(app)`` does to an app, and what it leaves alone. Nothing here connects to anything."""

from __future__ import annotations

import copy
import pickle
import socket
import types
from collections.abc import Callable
from typing import Any

import celery
import pytest
from celery import Celery, Task, bootsteps, shared_task
from celery.app.amqp import AMQP
from celery.app.registry import TaskRegistry
from celery.worker.consumer.consumer import Consumer
from celery.worker.request import Request
from celery.worker.strategy import default as default_strategy

import celery_hardened.app
from celery_hardened import ConfigurationError, HardenedTask, Hardening, NotHardenedError, Query, harden
from celery_hardened.app import describe_changes
from celery_hardened.pipeline.consumer import HardenedConsumer
from celery_hardened.pipeline.request import HardenedRequest
from tests.support.in_process import InProcessWorker, outcomes
from tests.unit.conftest import MakeApp


def define(app: Celery, name: str = "shop.charge", **options: Any) -> Any:
    """A hardened task that fails as its argument says."""

    @app.task(name=name, **{"base": HardenedTask, "shared": False, **options})
    def charge(error: str = "") -> str:
        if error == "transient":
            raise ConnectionError("gateway down")
        if error:
            raise ValueError(error)
        return "charged"

    return charge


def is_hardened(task: Any) -> bool:
    """Does it have what makes a hardened task, all of it?"""
    return bool(task.is_hardened and task.acks_late and task.reject_on_worker_lost and task.max_retries == 10)


# --- before and after ---------------------------------------------------------------------------------


def test_before_the_configuration_is_read(make_app: MakeApp) -> None:
    """harden() reads no configuration; once it is read, the preset lies in it."""
    app = make_app()
    harden(app)
    assert not app.configured
    assert app.conf.worker_prefetch_multiplier == 1


def test_after_the_configuration_was_read(make_app: MakeApp) -> None:
    """The preset is laid at once."""
    app = make_app()
    assert app.conf.worker_prefetch_multiplier == 4
    harden(app)
    assert app.conf.worker_prefetch_multiplier == 1


def test_a_configuration_that_is_read_again(make_app: MakeApp) -> None:
    """The preset, and our own settings, follow the new one."""
    app = make_app()
    harden(app)
    assert app.conf.worker_prefetch_multiplier == 1
    assert Hardening.expect(app).settings.max_retries == 10

    app.config_from_object({"worker_concurrency": 3, "hardened_max_retries": 4})

    assert (app.conf.worker_concurrency, app.conf.worker_prefetch_multiplier) == (3, 1)
    assert Hardening.expect(app).settings.max_retries == 4


def test_settings_given_after_harden_are_read(make_app: MakeApp) -> None:
    """Whether or not the configuration was read before, until our settings are first needed."""
    for read_before in (False, True):
        app = make_app()
        if read_before:
            assert app.conf.broker_url == "memory://"
        harden(app)
        app.conf.hardened_max_retries = 4
        assert define(app).max_retries == 4


@pytest.mark.parametrize("order", ["before", "after"])
def test_config_from_object(make_app: MakeApp, order: str) -> None:
    """Settings of an object reach us whichever is called first, and beat the preset."""
    source = {"hardened_max_retries": 4, "worker_prefetch_multiplier": 2, "task_acks_late": False}
    app = make_app()
    if order == "after":
        harden(app)
    app.config_from_object(source)
    if order == "before":
        harden(app)
    charge = define(app)
    assert (charge.max_retries, charge.acks_late, app.conf.worker_prefetch_multiplier) == (4, False, 2)


def test_django_namespace(make_app: MakeApp) -> None:
    """CELERY_HARDENED_X is hardened_x, and a CELERY_ setting beats the preset, dicts key by key."""
    django = types.SimpleNamespace(
        CELERY_BROKER_URL="redis://nowhere.invalid/0",
        CELERY_HARDENED_MAX_RETRIES=4,
        CELERY_WORKER_PREFETCH_MULTIPLIER=2,
        CELERY_TASK_TIME_LIMIT=30,
        CELERY_BROKER_TRANSPORT_OPTIONS={"visibility_timeout": 77, "socket_timeout": 3},
        SECURE_HARDENED_MODE="theirs",
        HARDENED_ROUTES="theirs",
        UNHARDENED_APPS="theirs",
    )
    app = Celery("shop", set_as_current=False)
    app.config_from_object(django, namespace="CELERY")
    harden(app)

    charge = define(app)

    # Celery 5.6 takes limits of the configuration to the pool, not to the task.
    hard = 30 if "time_limit" in dict(Task.from_config) else None
    assert (charge.max_retries, charge.time_limit, charge.soft_time_limit) == (4, hard, None)
    assert app.conf.worker_prefetch_multiplier == 2
    options = app.conf.broker_transport_options
    assert (options["visibility_timeout"], options["socket_timeout"], options["socket_keepalive"]) == (77, 3, True)


def test_other_peoples_settings_are_theirs(make_app: MakeApp) -> None:
    """Ours begin with hardened_; what only contains it is not ours."""
    app = harden(make_app(unhardened_mode=1, my_hardened_thing=2, hardenedness=3))
    assert Hardening.expect(app).settings.max_retries == 10


def test_old_uppercase_settings(make_app: MakeApp) -> None:
    """Celery's names of before 4.0 count as set, too."""
    app = Celery("shop", set_as_current=False)
    app.config_from_object({"BROKER_URL": "memory://", "CELERYD_PREFETCH_MULTIPLIER": 3, "CELERY_ACKS_LATE": False})
    harden(app)
    charge = define(app)
    assert (app.conf.worker_prefetch_multiplier, charge.acks_late, charge.reject_on_worker_lost) == (3, False, True)


# --- settings that are wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conf", "sentence"),
    [
        ({"hardened_max_retrys": 3}, "unknown setting 'hardened_max_retrys'. Did you mean 'hardened_max_retries'?"),
        ({"hardened_retry_fro": 3}, "Did you mean 'hardened_retry_for'?"),
        ({"HARDENED_MAX_RETRIES": 3}, "'HARDENED_MAX_RETRIES' is never read; write 'hardened_max_retries'"),
        ({"CELERY_HARDENED_MAX_RETRIES": 3}, "is never read; write 'hardened_max_retries'"),
        ({"hardened_max_retries": "3"}, "hardened_max_retries is '3'; it must be a number of at least 0"),
        ({"hardened_max_retries": None}, "hardened_max_retries is None, which means for ever"),
        ({"hardened_retry_floor": float("nan")}, "hardened_retry_floor is nan; it must be a number"),
        ({"hardened_soft_time_limit": 900, "hardened_time_limit": 300}, "above hardened_time_limit"),
        ({"hardened_retry_backoff": 900}, "every delay would be cut to the maximum"),
        ({"hardened_retry_floor": 5}, "above hardened_retry_backoff"),
        ({"hardened_death_delay": 90}, "above hardened_death_delay_max"),
        ({"hardened_dead_letter_max_count": 5}, "above hardened_dead_letter_max_count"),
        ({"hardened_amqp_queues": "stream"}, "hardened_amqp_queues is 'stream'"),
        ({"hardened_observe": "no"}, "hardened_observe is 'no'"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_one_clear_error(make_app: MakeApp, conf: dict[str, Any], sentence: str) -> None:
    """Not at import, where harden() is called; at the first hardened task, publish or worker."""
    app = harden(make_app(**conf))

    with pytest.raises(ConfigurationError) as at_definition:
        define(app).apply()
    assert sentence in str(at_definition.value)


def test_a_wrong_setting_stops_the_worker(make_app: MakeApp) -> None:
    """Though no task of it is hardened: a worker that goes on would run without any of it."""
    app = harden(make_app(hardened_max_retrys=3))
    define(app, base=Task)
    with pytest.raises(ConfigurationError, match="Did you mean 'hardened_max_retries'"):
        app.WorkController(pool="solo")


def test_a_retry_policy_that_never_ends_stops_the_worker(app: Celery) -> None:
    """max_retries=None without retry_for: found at start, not when the first task fails."""
    define(app, max_retries=None)
    with pytest.raises(ConfigurationError, match=r"'shop\.charge': max_retries is None"):
        app.WorkController(pool="solo")


def test_a_project_s_own_constant_beside_ours(make_app: MakeApp) -> None:
    """Under a namespace a bare HARDENED_X is read by nobody: refused, unless CELERY_HARDENED_X says it."""
    for both in (True, False):
        app = Celery("shop", set_as_current=False)
        source = {"CELERY_BROKER_URL": "memory://", "HARDENED_VERSION": "v7"}
        if both:
            source["CELERY_HARDENED_VERSION"] = "v7"
        app.config_from_object(source, namespace="CELERY")
        harden(app)
        if both:
            assert Hardening.expect(app).settings.version == "v7"
        else:
            with pytest.raises(ConfigurationError, match="write 'CELERY_HARDENED_VERSION'"):
                _ = Hardening.expect(app).settings


# --- called twice, called wrongly -------------------------------------------------------------------------


def test_twice_changes_nothing(app: Celery) -> None:
    """The second call returns the same app with the same state, and wraps nothing again."""
    charge = define(app)
    state, leaf, registry = Hardening.of(app), type(charge).__mro__, type(app._tasks)
    amqp, steps = type(app.amqp), set(app.steps["worker"])

    assert harden(app) is app

    assert Hardening.of(app) is state
    assert (type(charge).__mro__, type(app._tasks), type(app.amqp)) == (leaf, registry, amqp)
    assert set(app.steps["worker"]) == steps


def test_twice_and_differently_is_refused(app: Celery) -> None:
    with pytest.raises(ConfigurationError, match="Call it once"):
        harden(app, tasks="all")


def test_an_unknown_level_is_refused(make_app: MakeApp) -> None:
    with pytest.raises(ConfigurationError, match="'hardened' or 'all'"):
        harden(make_app(), tasks="everything")  # type: ignore[arg-type]


@pytest.mark.parametrize("package", ["celery", "kombu"])
@pytest.mark.parametrize("version", [(5, 5, 3), (5, 8, 0), (6, 0, 0)])
def test_an_unsupported_release_is_refused(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, package: str, version: tuple[int, ...]
) -> None:
    """Before anything was changed; the sentence says which are supported."""
    app = make_app()
    monkeypatch.setattr(getattr(celery_hardened.app, package), "VERSION", version)
    with pytest.raises(ConfigurationError, match=f"{package} .* is not supported.* 5.6 and 5.7"):
        harden(app)
    assert Hardening.of(app) is None


# --- tasks: when, where and how they are defined ------------------------------------------------------------


def test_tasks_of_every_kind_are_reached(make_app: MakeApp) -> None:
    """Lazy, evaluated, finalized before harden(), and after it: hardened or contained, each as its base says."""
    app = make_app()
    tasks = {}
    for kind in ("hardened", "contained"):
        base = HardenedTask if kind == "hardened" else Task
        tasks[f"lazy {kind}"] = define(app, f"lazy-{kind}", base=base)
        tasks[f"evaluated {kind}"] = define(app, f"evaluated-{kind}", base=base)
        assert tasks[f"evaluated {kind}"].name == f"evaluated-{kind}"
    harden(app)
    for kind in ("hardened", "contained"):
        base = HardenedTask if kind == "hardened" else Task
        tasks[f"after {kind}"] = define(app, f"after-{kind}", base=base)
    app.finalize()
    tasks["after finalize hardened"] = define(app, "final-hardened")
    tasks["after finalize contained"] = define(app, "final-contained", base=Task)

    for kind, task in tasks.items():
        assert is_hardened(task) == kind.endswith("hardened"), kind
        assert task.is_hardened == kind.endswith("hardened"), kind
        assert not isinstance(task, HardenedTask) or task.acks_late, kind
        task.apply(args=("broken",))
    letters = Hardening.expect(app).eager_dead_letters.find(Query(), limit=50).letters
    assert len(letters) == len(tasks)


@pytest.mark.parametrize("finalized", [False, True])
def test_what_celery_filled_in_before_is_not_taken_for_the_users_word(make_app: MakeApp, finalized: bool) -> None:
    """A task bound before harden() has acks_late=False, which nobody said; the preset applies all the same."""
    app = make_app()
    charge = define(app)
    assert charge.acks_late is False
    if finalized:
        app.finalize()
    harden(app)
    assert is_hardened(charge)
    assert (charge.time_limit, charge.soft_time_limit) == (300.0, 240.0)
    assert getattr(charge, "acks_on_failure", True) is True  # none before Celery 5.7


def test_the_users_word_on_a_task_bound_before_stays(make_app: MakeApp) -> None:
    """Said by its decorator, its base, app.conf or task_annotations."""
    app = make_app(task_reject_on_worker_lost=False, task_annotations={"annotated": {"acks_late": False}})

    class Base(HardenedTask):
        abstract = True
        time_limit = 7

    charge, annotated = define(app, base=Base, acks_late=False, max_retries=2), define(app, "annotated")
    assert (charge.name, annotated.name) == ("shop.charge", "annotated")
    harden(app)
    assert (charge.acks_late, charge.time_limit, charge.soft_time_limit) == (False, 7, None)
    assert (charge.max_retries, charge.reject_on_worker_lost) == (2, False)
    assert annotated.acks_late is False


def test_shared_tasks(app: Celery) -> None:
    """@shared_task belongs to whatever app is current; here it is hardened or contained like the app's own."""

    @shared_task(name="shared.hardened", base=HardenedTask)
    def one() -> None:
        raise ValueError("broken")

    @shared_task(name="shared.contained")
    def two() -> None:
        raise ValueError("broken")

    app.set_current()
    assert is_hardened(one)
    assert not two.is_hardened
    one.apply()
    two.apply()
    assert Hardening.expect(app).eager_dead_letters.stats().by_state == {"dead": 2}


@pytest.mark.parametrize("order", ["before", "after"])
def test_class_tasks(make_app: MakeApp, order: str) -> None:
    """Registered as a class or an instance, named or not, before harden() or after."""
    app = make_app()

    class Named(HardenedTask):
        name = "named"

        def run(self) -> None:
            raise ValueError("broken")

    class Nameless(HardenedTask):
        def run(self) -> None:
            raise ValueError("broken")

    class Plain(Task):
        name = "plain"

        def run(self) -> None:
            raise ValueError("broken")

    if order == "after":
        harden(app)
    registered = [app.register_task(Named), app.register_task(Nameless()), app.register_task(Plain())]
    if order == "before":
        harden(app)

    assert [task.is_hardened for task in registered] == [True, True, False]
    assert [is_hardened(task) for task in registered] == [True, True, False]
    assert registered[2].acks_late is False
    for task in registered:
        task.apply()
    assert Hardening.expect(app).eager_dead_letters.stats().by_state == {"dead": 3}
    assert Named.__dict__.get("acks_late") is not True, "the user's own class was changed"


def test_a_class_on_app_task(make_app: MakeApp) -> None:
    """``class X(app.Task)`` at import touches app.Task before harden(): contained, and working."""
    app = make_app()

    class Report(app.Task):  # type: ignore[name-defined,misc]
        name = "report"

        def run(self, error: str = "") -> str:
            if error:
                raise ValueError(error)
            return "done"

    harden(app)
    report = app.register_task(Report())
    assert report.apply().result == "done"
    assert report.apply(args=("broken",)).state == "FAILURE"
    assert not report.is_hardened
    assert Hardening.expect(app).eager_dead_letters.stats().by_state == {"dead": 1}


def test_celery_s_own_tasks_stay_as_they_are(make_app: MakeApp) -> None:
    """With every level, and even where the app's task class is a HardenedTask."""
    stock = make_app()
    attributes = ("acks_late", "reject_on_worker_lost", "max_retries", "time_limit", "soft_time_limit")
    for app in (
        harden(make_app()),
        harden(make_app(), tasks="all"),
        harden(make_app(task_cls=HardenedTask)),
        harden(make_app(task_cls="celery_hardened:HardenedTask")),
    ):
        own = {name: task for name, task in app.tasks.items() if name.startswith("celery.")}
        assert own.keys() == {name for name in stock.tasks if name.startswith("celery.")}
        for name, task in own.items():
            assert not getattr(task, "is_hardened", False), name
            assert "_Leaf" not in [cls.__name__ for cls in type(task).__mro__], name
            for attribute in attributes:
                assert getattr(task, attribute) == getattr(stock.tasks[name], attribute), (name, attribute)


def test_celery_s_own_tasks_retry_as_ever(make_app: MakeApp) -> None:
    """celery.chord_unlock retries itself without end, which a hardened task may not."""
    app = harden(make_app(task_cls=HardenedTask))
    unlock = app.tasks["celery.chord_unlock"]
    unlock.push_request(id="1", called_directly=False, is_eager=True, args=[], kwargs={}, delivery_info={}, retries=99)
    with pytest.raises(celery.exceptions.Retry):
        unlock.retry(countdown=1)
    unlock.pop_request()


# --- tasks="all" ------------------------------------------------------------------------------------------


def test_all_hardens_every_task(make_app: MakeApp) -> None:
    """Plain ones, those on other bases, class tasks and shared ones; what their classes say goes first."""
    app = harden(make_app(), tasks="all")

    class Own(Task):
        abstract = True
        acks_late = False

    class Report(Task):
        name = "report"
        max_retries = 2

        def run(self) -> None: ...

    plain, own, report = define(app, "plain", base=None), define(app, "own", base=Own), app.register_task(Report())
    assert is_hardened(plain)
    assert (own.is_hardened, own.acks_late, own.reject_on_worker_lost) == (True, False, True)
    assert (report.is_hardened, report.max_retries) == (True, 2)
    assert not hasattr(Task, "is_hardened")
    with outcomes() as noted:
        assert plain.apply(args=("transient",)).state == "FAILURE"
    assert noted == ["retry"] * 10 + ["failure"]


def test_all_comes_too_late(make_app: MakeApp) -> None:
    """After a task was bound Celery's defaults can no longer be told from the user's word."""
    app = make_app()
    assert define(app, base=Task).name == "shop.charge"
    with pytest.raises(ConfigurationError, match=r"after 1 tasks were bound \(such as 'shop.charge'\)"):
        harden(app, tasks="all")
    assert Hardening.of(app) is None


def test_all_in_time_though_tasks_are_decorated(make_app: MakeApp) -> None:
    """A decorated task is not bound before it is used."""
    app = make_app()
    charge = define(app, base=None)
    harden(app, tasks="all")
    assert is_hardened(charge)


# --- an app that was never hardened -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda task: task.delay(),
        lambda task: task.apply(),
        lambda task: (task.si() | task.si()).delay(),
        lambda task: InProcessWorker(task.app),
    ],
    ids=["delay", "apply", "signature", "worker"],
)
def test_hardened_task_without_harden(make_app: MakeApp, use: Callable[[Any], object]) -> None:
    """One clear error at the first publish, eager call or worker start; defining, and calling, it is fine."""
    app = make_app()
    charge = define(app)
    assert charge("") == "charged"

    with pytest.raises(NotHardenedError, match=r"'shop.charge' is a HardenedTask, but its app 'shop' was never"):
        use(charge)


def test_two_apps_of_which_one_is_hardened(make_app: MakeApp) -> None:
    """The other one's tasks, messages, settings, worker and registry are Celery's."""
    app, other = harden(make_app(main="one")), make_app(main="two")
    define(app)
    theirs = define(other, base=Task)

    assert type(other._tasks) is TaskRegistry
    assert type(other.amqp) is AMQP
    assert other.conf.worker_prefetch_multiplier == 4
    assert not hasattr(theirs, "is_hardened")
    with InProcessWorker(other) as worker:
        assert type(worker.consumer) is Consumer
        theirs.delay("broken")
        worker.step()
        assert "hardened" not in worker.seen[0].headers
    assert Hardening.of(other) is None


def test_a_task_that_celery_shares_with_an_app_that_is_not_hardened(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """
    ``@app.task`` goes to every app of the process. A worker of the other one starts, says
    that the task is plain there, and runs it as such; publishing it from there is refused.
    """
    app, other = harden(make_app(main="one")), make_app(main="two")
    charge = define(app, shared=True)
    assert is_hardened(charge)
    copied = other.tasks["shop.charge"]
    with InProcessWorker(other) as worker, outcomes() as noted:
        assert "shop.charge is hardened in another app, not in two" in caplog.text
        with pytest.raises(NotHardenedError):
            copied.delay()
        other.send_task("shop.charge", ("transient",))
        worker.run()
    assert noted == ["failure"]


# --- no connection, no refusal, whatever the broker -----------------------------------------------------------


@pytest.mark.parametrize("broker", ["memory://", "amqp://nowhere.invalid//", "redis://nowhere.invalid/0", None])
def test_import_connects_to_nothing_and_refuses_nothing(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, broker: str | None
) -> None:
    """harden(), defining tasks, reading the configuration and finalizing: with no broker URL, too."""

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError(f"connected: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    app = Celery("shop", broker=broker, set_as_current=False)
    harden(app)
    charge = define(app)
    app.finalize()
    assert is_hardened(charge)
    assert charge("") == "charged"
    assert "1 tasks hardened" in describe_changes(Hardening.expect(app))


# --- spawn ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["hardened", "all"])
def test_a_pickled_app_arrives_hardened(make_app: MakeApp, level: Any) -> None:
    """A pool process that is spawned gets the app by pickle, with its settings."""
    app = harden(make_app(hardened_max_retries=4), tasks=level)
    assert app.conf.worker_prefetch_multiplier == 1
    for twin in (pickle.loads(pickle.dumps(app)), copy.copy(app)):
        assert twin is not app
        found = Hardening.expect(twin)
        assert (found.app, found.tasks, found.settings.max_retries) == (twin, level, 4)
        assert twin.conf.worker_prefetch_multiplier == 1
        charge = define(twin, base=HardenedTask if level == "hardened" else None)
        assert charge.is_hardened


def test_an_app_of_the_users_own_class_is_pickled(make_app: MakeApp) -> None:
    """With its own amqp class, which must be importable by name, as Celery wants it."""
    app = harden(make_app(cls=Company, amqp="tests.unit.test_harden:CompanyAMQP"))
    twin = pickle.loads(pickle.dumps(app))
    assert isinstance(twin, Company)
    assert isinstance(twin.amqp, CompanyAMQP)
    assert Hardening.of(twin) is not None


class Company(Celery):
    """An app class of a user's own."""


class CompanyAMQP(AMQP):
    """An amqp class of a user's own."""

    argsrepr_maxsize = 7


# --- what is there already ---------------------------------------------------------------------------------------


class CompanyTask(Task):
    """A base that an app gives to all its tasks, with an application context in ``__call__``."""

    abstract = True
    calls: list[str] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append("context")
        return self.run(*args, **kwargs)

    def delay_later(self) -> str:
        return f"{self.name} later"


@pytest.mark.parametrize("how", ["task_cls", "task_cls by name", "app.Task"])
@pytest.mark.parametrize("touched", [False, True])
def test_an_app_whose_task_class_is_taken(make_app: MakeApp, how: str, touched: bool) -> None:
    """Its methods and its context are there for contained and for hardened tasks, once each run."""
    if how == "app.Task":
        app = make_app()
        app.Task = CompanyTask
    else:
        app = make_app(task_cls=CompanyTask if how == "task_cls" else "tests.unit.test_harden:CompanyTask")
    if touched:
        assert app.Task.__name__
    harden(app)
    tasks = define(app, "hardened"), define(app, "contained", base=None)
    for task in tasks:
        CompanyTask.calls.clear()
        assert task.apply().result == "charged"
        assert CompanyTask.calls == ["context"]
        assert task.delay_later() == f"{task.name} later"
    assert [task.is_hardened for task in tasks] == [True, False]


def test_a_base_of_its_own_is_left_alone_by_the_apps_class(make_app: MakeApp) -> None:
    """A task on another base did not have the app's class before and does not get it, not even with "all"."""
    app = harden(make_app(task_cls=CompanyTask), tasks="all")
    charge = define(app, base=Task)
    CompanyTask.calls.clear()
    assert charge.apply().result == "charged"
    assert CompanyTask.calls == []
    assert not isinstance(charge, CompanyTask)


def test_celery_s_django_task_class(make_app: MakeApp) -> None:
    """An app whose task class is Celery's DjangoTask: hardened tasks have delay_on_commit, too."""
    pytest.importorskip("django")
    app = harden(make_app(task_cls="celery.contrib.django.task:DjangoTask"))
    charge = define(app)
    assert callable(charge.delay_on_commit)
    assert is_hardened(charge)


def test_a_task_class_that_wants_keywords(app: Celery) -> None:
    """``__init_subclass__`` of the user's is not called for a class he did not write."""
    seen = []

    class Lane(Task):
        def __init_subclass__(cls, *, lane: str, **options: Any) -> None:
            super().__init_subclass__(**options)
            seen.append((cls.__name__, lane))

    class Report(Lane, lane="slow"):
        name = "report"

        def run(self) -> str:
            return "done"

    assert app.register_task(Report()).apply().result == "done"
    assert seen == [("Report", "slow")]


def test_task_classes_with_a_metaclass_and_slots(app: Celery) -> None:
    from abc import ABC, abstractmethod

    class Base(Task, ABC):
        __slots__ = ("extra",)

        @abstractmethod
        def run(self) -> str: ...

    class Report(Base):
        name = "report"

        def run(self) -> str:
            self.extra = "done"
            return self.extra

    assert app.register_task(Report()).apply().result == "done"


class OwnRequest(Request):
    """A request class of the user's."""

    seen: list[str] = []

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        self.seen.append(str(self.name))
        super().on_accepted(pid, time_accepted)


@pytest.mark.parametrize("how", ["option", "by name", "on the instance"])
def test_a_custom_request_class(app: Celery, how: str) -> None:
    """It is composed with, wherever it was set; letters are still written."""
    given = "tests.unit.test_harden:OwnRequest" if how == "by name" else OwnRequest
    charge = define(app, **({} if how == "on the instance" else {"Request": given}))
    if how == "on the instance":
        charge.Request = OwnRequest
    OwnRequest.seen.clear()
    with InProcessWorker(app) as worker:
        charge.delay("broken")
        worker.run()
    assert OwnRequest.seen == ["shop.charge"]
    used = charge.Request
    assert issubclass(used, HardenedRequest)
    assert issubclass(used, OwnRequest)
    assert Hardening.expect(app).dead_letters.stats().by_state == {"dead": 1}


class OwnConsumer(Consumer):
    """A consumer class of the user's."""


@pytest.mark.parametrize("given", [OwnConsumer, "tests.unit.test_harden:OwnConsumer"])
def test_a_custom_worker_consumer(make_app: MakeApp, given: Any) -> None:
    app = harden(make_app(worker_consumer=given))
    consumer = app.WorkController(pool="solo").consumer
    assert isinstance(consumer, OwnConsumer)
    assert isinstance(consumer, HardenedConsumer)
    assert type(consumer).__name__ == "OwnConsumer"


@pytest.mark.parametrize("built", [False, True])
def test_a_custom_amqp_class(make_app: MakeApp, built: bool) -> None:
    """Composed with, whether app.amqp was used before or not."""
    app = make_app(amqp=CompanyAMQP)
    charge = define(app)
    if built:
        assert app.amqp.send_task_message
    harden(app)
    with InProcessWorker(app) as worker:
        charge.delay()
        worker.run()
        assert worker.seen[0].headers["hardened"]["v"] == 1
    assert isinstance(app.amqp, CompanyAMQP)
    assert type(app.amqp).__name__ == "CompanyAMQP"


def test_bootsteps_and_signals_of_the_user_stay(app: Celery) -> None:
    started = []

    class Step(bootsteps.StartStopStep):
        def __init__(self, worker: Any, **options: Any) -> None:
            super().__init__(worker, **options)
            started.append(worker.app.main)

    app.steps["worker"].add(Step)
    app.WorkController(pool="solo")
    assert started == ["shop"]


def test_a_custom_strategy(app: Celery) -> None:
    """It is used as it is, gets our request class, and may ack later, as celery-batches does."""
    held = []

    def later(self: Any, task: Any, app: Celery, consumer: Any) -> Any:
        def take(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **options: Any) -> None:
            held.append((message.payload[0], ack))

        return take

    charge = define(app, base=Task, Strategy=later)
    with InProcessWorker(app) as worker:
        charge.delay("one")
        worker.step()
        charge.delay("two")
        worker.step()
        assert ([args for args, _ in held], worker.unacked) == ([["one"], ["two"]], 2)
        for _, ack in held:
            ack(None, ())
        assert worker.unacked == 0


def test_the_stock_strategy_is_the_default(app: Celery) -> None:
    from celery.utils.imports import symbol_by_name

    assert symbol_by_name(define(app).Strategy) is default_strategy


# --- the log line ---------------------------------------------------------------------------------------------------


def test_the_line_names_what_changed_and_how_many_tasks(make_app: MakeApp) -> None:
    """Counts of both levels, every setting that is not what it was, and none that is."""
    app = harden(make_app(broker_connection_retry_on_startup=False, task_publish_retry_policy={"max_retries": 9}))
    define(app)
    for name in ("a", "b"):
        define(app, name, base=Task)
    app.finalize()
    line = describe_changes(Hardening.expect(app))
    assert "1 tasks hardened, 2 contained" in line
    assert "worker_prefetch_multiplier=1" in line
    assert "task_publish_retry_policy={interval_start=0.1, interval_step=0.2, interval_max=1}" in line
    assert "broker_connection_retry_on_startup" not in line
    assert "enable_utc" not in line, "Celery's own default was named as a change"


def test_the_line_holds_no_secret_of_the_user(make_app: MakeApp) -> None:
    """It names what we added to his options, not what he put there."""
    app = make_app(
        broker="redis://user:hunter2@nowhere.invalid/0",
        broker_transport_options={"sentinel_kwargs": {"password": "hunter2"}},
    )
    harden(app).finalize()
    line = describe_changes(Hardening.expect(app))
    assert "broker_transport_options={socket_timeout=5, socket_connect_timeout=5, socket_keepalive=True}" in line
    assert "hunter2" not in line


def test_the_line_of_a_dry_run(make_app: MakeApp) -> None:
    app = harden(make_app(hardened_observe=True))
    define(app)
    app.finalize()
    line = describe_changes(Hardening.expect(app))
    assert "observing only: 1 tasks hardened" in line
    assert "you had not set: nothing" in line
