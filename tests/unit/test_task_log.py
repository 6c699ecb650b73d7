"""The records of a run: one at its start, one at its end, in place of Celery's lines and with known fields."""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from celery import Celery
from celery.exceptions import Ignore, Reject
from celery.signals import before_task_publish

import celery_hardened
from celery_hardened import HardenedTask
from celery_hardened.correlation import correlate
from celery_hardened.logs.fields import ARGUMENT, KNOWN
from celery_hardened.logs.logger import NAMES
from celery_hardened.metrics.outcome import Outcome
from tests.support.in_process import InProcessWorker
from tests.unit.conftest import MakeApp

OURS = "celery_hardened.task"
THEIRS = ("celery.worker.strategy", "celery.app.trace")

#: No task id holds it, as one in two thousand holds four digits.
CARD = "4111-1111-1111-1111"


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def shop(app: Celery) -> dict[str, Any]:
    """Tasks by how they end."""

    @app.task(base=HardenedTask, shared=False, name="fine", log_args=("invoice",))
    def fine(invoice: str, card: str = CARD) -> str:
        return "charged"

    @app.task(base=HardenedTask, bind=True, shared=False, name="flaky", max_retries=3)
    def flaky(self: Any) -> None:
        if not self.request.retries:
            raise ConnectionError(f"{CARD} is away")

    @app.task(shared=False, name="broken")
    def broken() -> None:
        raise ValueError(CARD)

    @app.task(shared=False, name="expected", throws=(KeyError,))
    def expected() -> None:
        raise KeyError(CARD)

    @app.task(shared=False, name="ignoring")
    def ignoring() -> None:
        raise Ignore(CARD)

    @app.task(shared=False, name="rejecting", acks_late=True)
    def rejecting() -> None:
        raise Reject(CARD, requeue=False)

    @app.task(shared=False, name="unencodable")
    def unencodable() -> object:
        return object()

    return {task.name: task for task in (fine, flaky, broken, expected, ignoring, rejecting, unencodable)}


def of(caplog: pytest.LogCaptureFixture, *loggers: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name in loggers]


def work(app: Celery, *tasks: Any) -> None:
    with InProcessWorker(app) as worker:
        for task in tasks:
            task.delay()
        worker.run()


@pytest.mark.parametrize("published", [pytest.param(10**400, id="huge"), float("inf"), -1e300, True, "soon"])
def test_a_time_of_publish_that_is_none_ends_no_run(
    app: Celery, caplog: pytest.LogCaptureFixture, published: Any
) -> None:
    """Whatever a producer that is not ours wrote there: the task runs, and how long it waited is not said."""
    task = shop(app)["fine"]

    def spoil(headers: dict[str, Any], **_: Any) -> None:
        headers["hardened"] = {**headers["hardened"], "published": published}

    before_task_publish.connect(spoil)
    try:
        with InProcessWorker(app) as worker:
            task.delay("i1")
            worker.run()
    finally:
        before_task_publish.disconnect(spoil)
    start, end = of(caplog, OURS)
    assert "wait_ms" not in vars(start)
    assert vars(end)["outcome"] == "success"


# --- one record each ------------------------------------------------------------------------------------------


def test_a_success_has_two_records_with_its_fields(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    task = shop(app)["fine"]
    with InProcessWorker(app) as worker:
        sent = task.delay("i1", card=CARD)
        worker.run()
    start, end = of(caplog, OURS)
    assert [start.levelno, end.levelno] == [logging.INFO, logging.INFO]
    for record in (start, end):
        fields = vars(record)
        assert (fields["task"], fields["task_id"], fields["attempt"]) == ("fine", sent.id, 0)
        assert fields["queue"] == app.conf.task_default_queue
        assert fields["worker"]
        assert fields["correlation_id"] == sent.id
        assert fields["arg_invoice"] == "i1"
        assert "arg_card" not in fields
        assert "root_id" not in fields
    assert vars(start)["wait_ms"] >= 0
    assert vars(end)["outcome"] == "success"
    assert vars(end)["runtime_ms"] >= 0


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("fine", [("failure", logging.ERROR, "TypeError")]),  # it lacks an argument
        ("flaky", [("retry", logging.INFO, "ConnectionError"), ("success", logging.INFO, None)]),
        ("broken", [("failure", logging.ERROR, "ValueError")]),
        ("expected", [("failure", logging.INFO, "KeyError")]),
        ("ignoring", [("ignore", logging.INFO, None)]),
        ("rejecting", [("reject", logging.WARNING, None)]),
    ],
)
def test_each_end_is_one_record(
    name: str, ends: list[tuple[str, int, str | None]], app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    """With its outcome, its level and the class of what was raised; only what is an error has a traceback."""
    task = shop(app)[name]
    task.typing = False
    work(app, task)
    found = [record for record in of(caplog, OURS) if hasattr(record, "outcome")]
    assert [(vars(r)["outcome"], r.levelno, vars(r).get("exc_type")) for r in found] == ends
    for record in found:
        assert CARD not in record.getMessage()
        assert bool(record.exc_info) == (record.levelno == logging.ERROR)
    assert of(caplog, *THEIRS) == []


def test_a_traceback_begins_at_the_body(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    work(app, shop(app)["broken"])
    (record,) = [record for record in of(caplog, OURS) if record.exc_info]
    assert record.exc_info is not None
    trace = record.exc_info[2]
    assert trace is not None
    names = []
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert names[-1] == "broken"
    assert "execute" not in names


def test_a_success_that_was_none_is_still_an_error(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    """A result that cannot be encoded is found after the body returned: Celery's line says it, and stays."""
    work(app, shop(app)["unencodable"])
    assert [record.levelno for record in of(caplog, *THEIRS)] == [logging.ERROR]


def test_eager_tasks(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    shop(app)["flaky"].apply()
    ends = [vars(record)["outcome"] for record in of(caplog, OURS) if hasattr(record, "outcome")]
    assert ends == ["success", "retry"] or ends == ["retry", "success"]
    assert of(caplog, *THEIRS) == []


def test_a_plain_call_is_not_logged(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    assert shop(app)["fine"]("i1") == "charged"
    assert of(caplog, OURS, *THEIRS) == []


# --- whose lines -----------------------------------------------------------------------------------------------


def test_switched_off_they_are_celerys(make_hardened: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    app = make_hardened(hardened_task_logs=False)
    work(app, shop(app)["broken"])
    assert of(caplog, OURS) == []
    assert [record.levelno for record in of(caplog, *THEIRS)] == [logging.INFO, logging.ERROR]


def test_a_dry_run_changes_no_line(make_hardened: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    app = make_hardened(hardened_observe=True)
    work(app, shop(app)["broken"])
    assert of(caplog, OURS) == []
    assert len(of(caplog, *THEIRS)) == 2


def test_celerys_own_tasks_keep_their_lines(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    work(app, app.tasks["celery.backend_cleanup"])
    assert len(of(caplog, *THEIRS)) == 2


def test_where_ours_would_not_be_heard_celerys_stay(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    """``dictConfig`` disables the loggers that it does not name: a task must not end without a word."""
    ours = logging.getLogger(OURS)
    ours.disabled = True
    try:
        work(app, shop(app)["broken"])
    finally:
        ours.disabled = False
    assert len(of(caplog, *THEIRS)) == 2


@pytest.mark.parametrize(
    ("levels", "theirs"),
    [
        ({"": logging.WARNING, "celery": logging.INFO}, 2),
        ({"": logging.WARNING, "celery": logging.INFO, "celery_hardened": logging.WARNING}, 0),
        ({"": logging.WARNING, "celery": logging.INFO, OURS: logging.WARNING}, 0),
        ({"": logging.INFO}, 0),
    ],
    ids=["quiet by accident", "quiet as a package", "quiet on purpose", "all"],
)
def test_where_ours_are_quiet(
    levels: dict[str, int], theirs: int, app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    """A project that asks for ``celery`` at INFO and else for WARNING keeps its lines; one that has quieted ours has
    not asked for Celery's, which hold results."""
    for name, level in levels.items():
        caplog.set_level(level, name)
    work(app, shop(app)["ignoring"])
    assert len(of(caplog, *THEIRS)) == theirs
    assert len(of(caplog, OURS)) == (2 if len(levels) == 1 else 0)


def test_other_lines_of_the_same_loggers_stay(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    for name in THEIRS:
        logging.getLogger(name).info("something else")
        logging.getLogger(name).error("something else", extra={"data": {"id": "i", "exc": "e"}})
    assert len(of(caplog, *THEIRS)) == 4


# --- a project's own records ---------------------------------------------------------------------------------------


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A project that gives each record fields, as many do; some have our names."""
    made = logging.getLogRecordFactory()

    def make(*args: Any, **options: Any) -> logging.LogRecord:
        record = made(*args, **options)
        vars(record).update(dict.fromkeys(KNOWN, "theirs"), tenant="acme")
        return record

    monkeypatch.setattr(logging, "_logRecordFactory", make)


@pytest.mark.usefixtures("factory")
@pytest.mark.parametrize("name", ["flaky", "broken", "expected", "rejecting"])
def test_a_record_factory_fails_no_task(name: str, app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    """``logging`` raises where a field of ``extra`` is on the record already: of a ``task_id`` by the project, every
    task of it would fail, and every letter of that."""
    work(app, shop(app)[name])
    ends = [vars(record) for record in of(caplog, OURS) if vars(record)["outcome"] != "theirs"]
    assert [end["outcome"] for end in ends] == {
        "flaky": ["retry", "success"],
        "broken": ["failure"],
        "expected": ["failure"],
        "rejecting": ["reject"],
    }[name]
    assert {(end["task"], end["tenant"]) for end in ends} == {(name, "acme")}
    assert not [record for record in caplog.records if "Attempt to overwrite" in (record.exc_text or record.message)]


def test_who_gives_fields_takes_them() -> None:
    """Each module that names ``extra`` logs by a logger that minds no factory."""
    for path in Path(celery_hardened.__file__).parent.rglob("*.py"):
        text = path.read_text()
        if "extra=" in text and path.parent.name != "logs":
            assert set(re.findall(r'^logger = logging.getLogger\("(.+)"\)', text, re.M)) <= {*NAMES}, path.name


# --- correlation and schedules -----------------------------------------------------------------------------------


def test_a_correlation_id_that_is_not_safe_is_not_logged(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    """Messages come from anywhere."""
    task = shop(app)["fine"]
    with InProcessWorker(app) as worker:
        task.apply_async(("i1",), headers={"hardened": {"correlation_id": "a\nb"}}, task_id="t")
        worker.run()
    assert {vars(record)["correlation_id"] for record in of(caplog, OURS)} == {"t"}


def test_a_child_has_the_id_of_its_parent(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    """And so have callbacks, the links of a chain, retries and a task that took another's place."""
    tasks = shop(app)

    @app.task(bind=True, shared=False, name="parent")
    def parent(self: Any) -> None:
        tasks["flaky"].delay()
        self.replace(tasks["fine"].si("i1"))

    with InProcessWorker(app) as worker:
        with correlate("web-1"):
            parent.delay()
            (tasks["fine"].si("i2") | tasks["fine"].si("i3")).apply_async(link=tasks["fine"].si("i4"))
        parent.apply_async(task_id="alone")
        worker.run()
    by_id: dict[str, int] = {}
    for record in of(caplog, OURS):
        by_id[vars(record)["correlation_id"]] = by_id.get(vars(record)["correlation_id"], 0) + 1
    # parent, flaky twice, and fine in its place: two records each; the chain and its callback.
    assert by_id == {"web-1": 8 + 6, "alone": 8}


# --- the vocabulary --------------------------------------------------------------------------------------------------


def extras() -> list[tuple[str, str, ast.expr]]:
    """Each field that is named in an ``extra`` of the package: where, its name and its value."""
    found = []
    for path in Path(celery_hardened.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            keywords = node.keywords if isinstance(node, ast.Call) else ()
            values = [one.value for one in keywords if one.arg == "extra"]
            if isinstance(node, ast.Assign) and any(getattr(one, "id", "") == "extra" for one in node.targets):
                values.append(node.value)
            for value in values:
                if isinstance(value, ast.Dict):
                    for key, item in zip(value.keys, value.values, strict=True):
                        if isinstance(key, ast.Constant):
                            found.append((path.name, str(key.value), item))
    return found


def test_all_records_speak_with_one_vocabulary() -> None:
    """Every field of every record is known, and an outcome of a delivery is one of the metric's."""
    assert len(extras()) > 40
    for path, name, value in extras():
        assert name in KNOWN or name.startswith(ARGUMENT), f"{path} logs a field {name!r}"
        if name == "outcome" and isinstance(value, ast.Constant) and not path.startswith("beat_"):
            assert value.value in get_args(Outcome), f"{path} logs outcome {value.value!r}"


class Raising(logging.Filter):
    """A filter with a fault of its own."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise KeyError("tenant")


def test_a_filter_that_raises_ends_no_run(make_hardened: MakeApp, capsys: pytest.CaptureFixture[str]) -> None:
    """The run succeeds, as if it were not logged, and its body runs once; what the filter raised is told on stderr."""
    app = make_hardened()
    ran = []

    @app.task(base=HardenedTask, shared=False, name="counted")
    def counted() -> None:
        ran.append(1)

    logger, raising = logging.getLogger(OURS), Raising()
    logger.addFilter(raising)
    try:
        with InProcessWorker(app) as worker:
            result = counted.delay()
            worker.run()
    finally:
        logger.removeFilter(raising)
    assert ran == [1]
    assert result.state == "SUCCESS"
    assert "KeyError: 'tenant'" in capsys.readouterr().err
