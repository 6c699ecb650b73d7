"""``hardened schedule`` on a real Redis, with and without a beat that runs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from celery import Celery
from redis import Redis

from celery_hardened import Hardening
from celery_hardened.beat.names import Keys, task_id_of
from celery_hardened.beat.record import Record
from celery_hardened.beat.store import BeatStore
from celery_hardened.cli.schedule.words import utc
from tests.fixtures.beats import StartBeat
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.cli import answers, call
from tests.support.notes import notes
from tests.support.terminal import at_terminal
from tests.support.until import until
from tests.support.worker import MODULE, lay_out
from tests.unit.test_cli_reference import named_fields, section

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["redis"], indirect=True)]

APP = (Path(__file__).parents[1] / "support" / "beat_app.py").read_text()

SCHEDULES = """{
    'nightly': {'task': 'proj.tick', 'schedule': crontab(minute='30', hour='2'), 'timezone': 'America/New_York'},
    'quarter': {'task': 'proj.tick', 'schedule': crontab(minute='*/15'), 'jitter': 60, 'overlap': 'skip'},
    'often': {'task': 'proj.tick', 'schedule': 2.0},
    'misspelt': {'task': 'proj.tick', 'schedule': 2.0, 'overlaps': 'skip'},
}"""

Schedule: TypeAlias = Callable[..., Any]


@pytest.fixture
def env(environment: dict[str, str]) -> dict[str, str]:
    """Records are where messages are, as they are unless somebody says otherwise."""
    return {**environment, "SCHEDULES": SCHEDULES, "RECORDS_URL": environment["BROKER_URL"]}


@pytest.fixture
def project(load_project: LoadProject, env: dict[str, str]) -> Celery:
    app: Celery = load_project(APP, env=env).app
    return app


@pytest.fixture
def schedule(project: Celery) -> Schedule:
    """Run ``hardened schedule ARGS`` in this process."""
    return lambda *args, **more: call(project, "schedule", *args, **more)


@pytest.fixture
def store(project: Celery) -> BeatStore:
    hardening = Hardening.expect(project)
    return BeatStore(hardening.redis, Keys(hardening.prefix), history=50)


def listed(schedule: Schedule, *args: str) -> dict[str, Any]:
    return {row["name"]: row for row in answers(schedule("list", "--json", *args))}


def runs(out: Path, name: str) -> list[tuple[float, str]]:
    """Slot and task id of each run."""
    lines = [line.split() for line in notes(out, "runs")]
    return [(float(slot), task_id) for of, slot, task_id, _ in lines if of == name]


def queued(project: Celery, environment: dict[str, str]) -> list[dict[str, Any]]:
    """Headers of the messages that wait, oldest first."""
    with Redis.from_url(environment["BROKER_URL"]) as client:
        texts: list[Any] = client.lrange(environment["QUEUE"], 0, -1)
    return [json.loads(text)["headers"] for text in reversed(texts)]


# --- without a beat -----------------------------------------------------------------------------------------


def test_list_shows_what_no_beat_has_seen_yet(schedule: Schedule) -> None:
    """Timing, zone, next slot and policy, and a bad entry with its problem, though no beat has ever run."""
    found = listed(schedule)
    assert list(found) == ["nightly", "quarter", "often", "misspelt"]
    assert found["nightly"]["timing"] == "crontab 30 2 * * *, America/New_York"
    assert found["nightly"]["zone"] == "America/New_York"
    assert found["nightly"]["next"] > time.time()
    assert found["quarter"]["latest"] == found["quarter"]["next"] + 60
    assert found["quarter"]["policy"]["overlap"] == "skip"
    assert found["often"]["next"] is None
    assert found["often"]["cursor"] is None
    assert "Did you mean 'overlap'?" in found["misspelt"]["problem"]
    assert set(listed(schedule, "--problems")) == {"misspelt"}
    assert set(listed(schedule, "*t*n")) == {"often"}

    result = schedule("list")
    assert result.exit_code == 0
    assert "every 2 s" in result.stdout
    assert "no beat has seen it yet" in result.stdout
    assert "PROBLEM: unknown key 'overlaps'" in result.stdout


def test_next_needs_no_beat(schedule: Schedule) -> None:
    """Slots in order, in UTC and the schedule's zone, jitter as a range; an interval has none before a beat sees it."""
    found = answers(schedule("next", "--count", "3", "--json"))
    assert [one["slot"] for one in found] == sorted(one["slot"] for one in found)
    quarters = [one for one in found if one["name"] == "quarter"]
    assert [b["slot"] - a["slot"] for a, b in pairwise(quarters)] == [900, 900]
    assert {one["latest"] - one["slot"] for one in quarters} == {60}
    result = schedule("next", "nightly", "often", "misspelt")
    assert "T02:30:00-0" in result.stdout
    assert "often: every 2 s, from when a beat first sees it." in result.stderr
    assert "misspelt" in result.stderr


@pytest.mark.parametrize(
    "command",
    [["next"], ["history"], ["trigger"], ["pause", "--why", "x"], ["resume"], ["preview"], ["list"],
     ["backfill", "--from", "1h", "--to", "0s"]],
    ids=lambda command: command[0],
)  # fmt: skip
def test_an_unknown_name_is_exit_code_3_with_a_guess(schedule: Schedule, command: list[str]) -> None:
    """Nothing is done, and the right name is guessed."""
    result = schedule(*command, "nightlly")
    assert result.exit_code == 3, result.output
    assert "Did you mean 'nightly'?" in result.stderr


def test_pauses_are_told_and_ended(schedule: Schedule, store: BeatStore) -> None:
    """Who, why and until when; unknown names only if meant; a pause of a schedule that is gone can be ended."""
    assert schedule("pause", "often", "--why", "floods", "--by", "ann", "--until", "2h").exit_code == 0
    assert schedule("pause", "gone", "--why", "x", "--unknown-too").exit_code == 0
    pause = store.paused()["often"]
    assert (pause.by, pause.why) == ("ann", "floods")
    assert pause.until is not None
    assert abs(pause.until - time.time() - 7200) < 60
    assert set(listed(schedule, "--paused")) == {"often"}
    assert "PAUSED until" in schedule("list", "often").stdout
    assert "paused until" in schedule("next", "often").stderr
    assert schedule("pause", "often", "--why", "x", "--until", "2020-01-01").exit_code == 2
    assert schedule("pause", "often").exit_code == 2
    result = schedule("resume", "often", "gone", "nightly")
    assert result.exit_code == 0
    assert "often goes on; it was paused by ann: floods" in result.stdout
    assert "nightly was not paused." in result.stderr
    assert not store.paused()


def test_a_skip_is_told_and_taken_back(schedule: Schedule, store: BeatStore) -> None:
    """Which slot, who and why; one a schedule; what has no coming slot that is known is refused, and the others not."""
    refused = schedule("skip", "often", "nightly", "--why", "audit", "--by", "ann")
    assert refused.exit_code == 1
    assert "from when a beat first sees it" in refused.stderr
    assert "nightly: slot" in refused.stdout
    found = listed(schedule)["nightly"]
    assert (found["skipped"]["by"], found["skipped"]["why"]) == ("ann", "audit")
    assert found["skipped"]["slot"] == found["next"]
    assert "SKIPPED by ann: audit" in schedule("list", "nightly").stdout
    assert "is skipped, by ann: audit" in schedule("next", "nightly").stderr
    again = schedule("skip", "nightly", "--why", "again")
    assert again.exit_code == 1
    assert "skipped already, by ann: audit" in again.stderr
    assert schedule("skip", "nightly").exit_code == 2
    assert schedule("skip", "nobody", "--why", "x").exit_code == 3
    back = schedule("unskip", "nightly", "often")
    assert back.exit_code == 0
    assert "it was skipped by ann: audit" in back.stdout
    assert "no slot of often is skipped" in back.stderr
    assert listed(schedule)["nightly"]["skipped"] is None


def test_trigger_fires_once_beside_its_slots(
    schedule: Schedule, project: Celery, store: BeatStore, environment: dict[str, str]
) -> None:
    """A new id, the schedule and the instant in the header, a line in the history; no record moves."""
    result = schedule("trigger", "nightly", "often", "--by", "ann", "--json")
    assert result.exit_code == 0, result.output
    first, second = answers(result)
    headers = queued(project, environment)
    assert [header["id"] for header in headers] == [first["task_id"], second["task_id"]]
    marks = headers[0]["hardened"]
    assert marks["schedule"] == "nightly"
    assert abs(marks["slot"] - time.time()) < 60
    (line,) = answers(schedule("history", "nightly", "--json"))
    assert (line["outcome"], line["id"], line["by"]) == ("triggered", first["task_id"], "ann")
    assert "triggered" in schedule("history", "nightly").stdout
    assert store.records() == {}


def test_trigger_heeds_pauses_and_overlaps_unless_forced(
    schedule: Schedule, project: Celery, environment: dict[str, str]
) -> None:
    """Refused, with the reason, exit code 1, and nothing is sent; with --force it is."""
    assert schedule("trigger", "quarter").exit_code == 0
    (holder,) = [header["id"] for header in queued(project, environment)]
    assert listed(schedule)["quarter"]["running"] == holder
    refused = schedule("trigger", "quarter")
    assert refused.exit_code == 1
    assert holder in refused.stderr
    schedule("pause", "often", "--why", "x")
    refused = schedule("trigger", "often", "nightly")
    assert refused.exit_code == 1
    assert "paused" in refused.stderr
    assert "nightly: fired as" in refused.stdout  # the next one is dealt with
    assert schedule("trigger", "misspelt").exit_code == 1
    assert len(queued(project, environment)) == 2
    assert schedule("trigger", "quarter", "often", "--force").exit_code == 0
    assert len(queued(project, environment)) == 4


def test_a_run_by_hand_that_ends_the_other_yields_to_later_ones(
    load_project: LoadProject, env: dict[str, str], environment: dict[str, str]
) -> None:
    """As one that a beat fires; with --force it holds no window, and there is nothing to yield to."""
    schedules = "{'latest': {'task': 'proj.tick', 'schedule': 900.0, 'overlap': 'cancel_other'}}"
    project = load_project(APP, env={**env, "SCHEDULES": schedules}).app
    for more in ([], ["--force"]):
        assert call(project, "schedule", "trigger", "latest", *more).exit_code == 0
    assert [header["hardened"].get("yields") for header in queued(project, environment)] == [True, None]


def test_backfill_fires_slots_of_the_past_under_their_ids(
    schedule: Schedule, project: Celery, environment: dict[str, str]
) -> None:
    """Shown first, asked for, each under its slot's own id; the same again within the hour sends nothing twice."""
    period = ["--from", "2026-01-01T00:00", "--to", "2026-01-01T01:00"]
    dry = schedule("backfill", "quarter", *period, "--dry-run")
    assert "would fire 4 of 4 slots" in dry.stdout
    assert "2026-01-01T00:45:00Z" in dry.stdout
    assert queued(project, environment) == []
    assert schedule("backfill", "quarter", *period).exit_code == 1  # nobody is there to be asked
    assert queued(project, environment) == []
    result = schedule("backfill", "quarter", *period, "--yes", "--pace", "0", "--json")
    assert result.exit_code == 0, result.output
    slots = [1767225600.0 + 900 * number for number in range(4)]
    expected = [task_id_of("quarter", slot) for slot in slots]
    assert [row["task_id"] for row in answers(result)] == expected
    headers = queued(project, environment)
    assert [header["id"] for header in headers] == expected
    assert [header["hardened"]["slot"] for header in headers] == slots
    again = schedule("backfill", "quarter", *period, "--yes", "--pace", "0")
    assert "backfilled" in again.stdout
    assert len(queued(project, environment)) == 4


def test_backfill_tells_what_became_of_each_slot(schedule: Schedule, project: Celery) -> None:
    """Also of slots that one line of the history has together; the latest line counts."""
    hardening = Hardening.expect(project)
    first, last = 1767226500.0, 1767228300.0
    lines: list[dict[str, Any]] = [
        {"outcome": "skipped", "slot": last, "first": first, "count": 3},
        {"outcome": "backfilled", "slot": first + 900},
    ]
    for line in lines:
        hardening.redis.lpush(Keys(hardening.prefix).history("quarter"), json.dumps({"at": last, **line}))
    period = ["--from", "2026-01-01T00:00", "--to", "2026-01-01T01:15", "--dry-run"]
    found = [row["became"] for row in answers(schedule("backfill", "quarter", *period, "--json"))]
    assert found == [None, "skipped", "backfilled", "skipped", None]
    assert schedule("backfill", "quarter", *period).stdout.count("skipped") == 2


def test_backfill_leaves_to_the_beats_what_is_theirs(schedule: Schedule, store: BeatStore) -> None:
    """Slots that no beat has decided are left out, and told of; too many, none, or an interval's past are refused."""
    assert schedule("adopt", "--since", "2026-01-01T00:40", "--json").exit_code == 1  # "misspelt" cannot be
    assert set(store.records()) == {"nightly", "quarter", "often"}
    result = schedule("backfill", "quarter", "--from", "2026-01-01", "--to", "2026-01-02", "--dry-run", "--json")
    assert [row["slot"] for row in answers(result)] == [1767225600.0, 1767226500.0, 1767227400.0]
    assert "2026-01-01T00:45:00Z on are left to the beats" in result.stderr
    refused = schedule("backfill", "quarter", "--from", "2025-01-01", "--to", "2026-01-01", "--yes")
    assert refused.exit_code == 1
    assert "more than 100 slots" in refused.stderr
    assert schedule("backfill", "often", "--from", "2025-01-01", "--to", "2026-01-01", "--yes").exit_code == 1
    assert schedule("backfill", "often", "--from", "1h", "--to", "2h").exit_code == 2
    overdue = listed(schedule)["often"]
    assert overdue["overdue"] > 1000
    assert "overdue" in schedule("next", "often").stderr


def test_backfill_stopped_by_ctrl_c_says_where(env: dict[str, str], tmp_path: Path, project: Celery) -> None:
    """Ctrl-C between two slots: what was fired is fired, the rest is not, and the sentence says how to go on."""
    environment = {**env, **lay_out(tmp_path / "terminal", APP)}
    words = ["backfill", "quarter", "--from", "2026-01-01T00:00", "--to", "2026-01-01T04:00", "--pace", "1"]
    code, seen = at_terminal(
        [sys.executable, "-m", "celery", "-A", MODULE, "hardened", "schedule", *words],
        cwd=tmp_path / "terminal",
        env=environment,
        answers={"Fire it for these 16 slots?": "y\n", "12%": "\x03"},
    )
    assert code == 130, seen
    fired = len(queued(project, environment))
    assert 2 <= fired < 16
    assert f"{fired} of 16 slots were fired" in seen
    on = 1767225600 + 900 * fired
    assert f"--from {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(on))}" in seen


def test_preview_tells_what_the_clock_does(schedule: Schedule) -> None:
    """Slots of a schedule or of an expression, with notes on both changes of the clock; zones are told apart."""
    spring = schedule("preview", "nightly", "--from", "2026-03-07", "--to", "2026-03-10")
    assert "02:30 does not exist, fired at 03:00" in spring.stdout
    assert "2026-03-08 03:00:00-04:00" in spring.stdout
    autumn = ["--from", "2026-10-31T12:00", "--to", "2026-11-02"]
    found = answers(schedule("preview", "--crontab", "30 1 * * *", "--zone", "America/New_York", *autumn, "--json"))
    assert [line["local"] for line in found if line["due"]] == ["2026-11-01 01:30:00"]
    assert "comes twice" in json.dumps(found)
    told = schedule("preview", "nightly", *autumn, "--zone", "Asia/Tokyo")
    assert "+09:00" in told.stdout
    counted = schedule("preview", "often", "--from", "2026-01-01", "--to", "2026-01-02", "--most", "3")
    assert "counted from 2026-01-01T00:00:00Z here" in counted.stderr
    assert "2026-01-01T00:00:06Z" in counted.stdout


class Odd:
    """A schedule of a user's that does not know itself."""

    def is_due(self, last_run_at: Any) -> tuple[bool, float]:
        raise RuntimeError("no idea")


def test_a_schedule_that_raises_is_a_sentence(schedule: Schedule, project: Celery) -> None:
    """Every command says what it raised; the other schedules are shown."""
    project.conf.beat_schedule["odd"] = {"task": "proj.tick", "schedule": Odd()}
    found = listed(schedule)
    assert "RuntimeError: no idea" in found["odd"]["problem"]
    assert found["nightly"]["next"] is not None
    assert "no idea" in schedule("next").stderr
    for command in (["preview", "odd"], ["backfill", "odd", "--from", "1h", "--to", "0s", "--yes"]):
        result = schedule(*command)
        assert result.exit_code == 1
        assert "no idea" in result.stderr


def test_backfill_leaves_out_what_waits(schedule: Schedule, store: BeatStore) -> None:
    """A slot that waits for the run before it, or for its broker, is fired by a beat: not by hand besides."""
    schedule("adopt", "--since", "2026-01-01T01:00")
    record = replace(Record.parse(store.records()["quarter"]), buffered=1767226500.0, pending=1767227400.0)
    store.adopt({"quarter": record.text()}, overwrite=True)
    period = ["--from", "2026-01-01T00:00", "--to", "2026-01-01T01:00", "--dry-run", "--json"]
    result = schedule("backfill", "quarter", *period)
    assert [row["slot"] for row in answers(result)] == [1767225600.0, 1767228300.0]
    assert result.stderr.count("it waits to be fired") == 2


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["preview"], "name a schedule"),
        (["preview", "nightly", "--crontab", "* * * * *"], "name a schedule"),
        (["preview", "--crontab", "* * * *"], "five fields"),
        (["preview", "--crontab", "61 * * * *"], "no crontab"),
        (["preview", "nightly", "--zone", "Mars/Base"], "no time zone"),
        (["preview", "nightly", "--from", "tomorrow"], "neither"),
        (["preview", "nightly", "--from", "+2h", "--to", "+1h"], "must be later"),
        (["list", "--scheduler", "celery.beat:PersistentScheduler"], "no scheduler of celery_hardened's"),
        (["list", "--scheduler", "hardend"], "no scheduler 'hardend'"),
        (["adopt"], "say what from"),
        (["adopt", "--shelve", "x", "--redbeat", "redis://localhost"], "not both"),
        (["adopt", "--since", "+1h"], "still to come"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value)[:40],
)
def test_wrong_usage_is_a_sentence(schedule: Schedule, args: list[str], said: str) -> None:
    """Exit code 2, and what to say instead."""
    result = schedule(*args)
    assert result.exit_code == 2, result.output
    assert said in result.stderr


def test_adopt_overwrites_only_if_told(schedule: Schedule, store: BeatStore) -> None:
    """A schedule that a beat of ours knows keeps its record; a dry run changes nothing."""
    schedule("adopt", "--since", "2026-01-01T00:40", "--dry-run")
    assert store.records() == {}
    schedule("adopt", "--since", "2026-01-01T00:40")
    before = store.records()
    result = schedule("adopt", "--since", "2026-02-01")
    assert "say --overwrite" in result.stdout
    assert store.records() == before
    schedule("adopt", "--since", "2026-02-01", "--overwrite")
    assert store.records().keys() == before.keys()
    assert not store.records().items() & before.items()


def test_the_shapes_of_json_are_those_of_the_page(schedule: Schedule) -> None:
    """Every field of every answer is named in ``docs/reference/cli.md``, and no other."""
    dry = schedule("adopt", "--since", "2026-01-01T00:40", "--dry-run", "--json")
    period = ["--from", "2026-01-01T00:00", "--to", "2026-01-01T00:10", "--json"]
    shapes = {
        "Schedules in JSON": schedule("list", "quarter", "--json"),
        "Slots in JSON": schedule("next", "quarter", "--json"),
        "Backfilled slots in JSON": schedule("backfill", "quarter", *period, "--dry-run"),
        "Preview in JSON": schedule("preview", "quarter", *period),
        "Adopted schedules in JSON": dry,
    }
    for title, result in shapes.items():
        assert named_fields(section(title)) == set(answers(result)[0]), title


# --- with a beat that leads ----------------------------------------------------------------------------------


@pytest.fixture
def led(start_beat: StartBeat, start_worker: StartWorker, env: dict[str, str], out: Path) -> None:
    """A worker, and a beat that has fired ``often``."""
    start_worker(APP, env=env)
    start_beat(APP, env=env)
    until(lambda: runs(out, "often"), what="the first run", within=60)


def test_a_beat_obeys_pause_and_resume(led: None, schedule: Schedule, store: BeatStore, out: Path) -> None:
    """No slot from two seconds after the pause on, nothing made up for after it, and then each slot again."""
    assert schedule("pause", "often", "--why", "floods").exit_code == 0
    paused_at = time.time()
    (slot, _), *_ = runs(out, "often")

    def between_slots() -> bool:
        # One that is due just now may be decided on after the end of the pause.
        return time.time() > paused_at + 8 and 0.8 < (time.time() - slot) % 2.0 < 1.6

    until(between_slots, what="some slots to be paused", within=30)
    resumed_at = time.time()
    assert schedule("resume", "often").exit_code == 0
    until(lambda: [slot for slot, _ in runs(out, "often") if slot > resumed_at + 2], what="runs again", within=60)
    fired = [slot for slot, _ in runs(out, "often")]
    assert not [slot for slot in fired if paused_at + 2 < slot < resumed_at], fired
    found = listed(schedule)["often"]
    assert found["not_fired"]["paused"] >= 2
    assert found["fired"] >= 2
    assert found["paused"] is None
    outcomes = {line["outcome"] for line in answers(schedule("history", "often", "--json"))}
    assert {"fired", "paused"} <= outcomes


def test_a_beat_obeys_a_skip(led: None, schedule: Schedule, out: Path) -> None:
    """Fired before and after it, and not for it: known from the moment that the command has answered."""
    until(lambda: runs(out, "often"), what="a run", within=60)
    said = schedule("skip", "often", "--why", "floods", "--by", "ann")
    assert said.exit_code == 0

    def passed() -> list[Any]:
        lines = answers(schedule("history", "often", "--json"))
        return [line for line in lines if line["outcome"] == "skipped_by_hand"]

    # Not from the list: the slot may be over before that is asked.
    skipped = until(passed, what="the slot to be passed over", within=60)[0]["slot"]
    assert f"slot {utc(skipped)} " in said.stdout
    until(lambda: [slot for slot, _ in runs(out, "often") if slot > skipped], what="the runs behind it", within=60)
    slots = [slot for slot, _ in runs(out, "often")]
    assert skipped not in slots
    assert [slot for slot in slots if slot < skipped]
    found = listed(schedule)["often"]
    assert (found["not_fired"], found["skipped"]) == ({"skipped_by_hand": 1}, None)
    (line,) = passed()
    assert (line["slot"], line["by"], line["why"]) == (skipped, "ann", "floods")
    assert schedule("unskip", "often").exit_code == 0  # nothing is skipped any more, and that is said


def test_a_skip_outlives_the_leader(
    start_beat: StartBeat, start_worker: StartWorker, load_project: LoadProject, env: dict[str, str], out: Path
) -> None:
    """Two beats; the one that leads is killed with the skip outstanding: the other passes over that slot alone."""
    env = {**env, "SCHEDULES": "{'often': {'task': 'proj.tick', 'schedule': 8.0}}"}
    app: Celery = load_project(APP, env=env).app
    start_worker(APP, env=env)
    leader = start_beat(APP, env=env)
    start_beat(APP, env=env, leads=False).wait_standing_by()
    until(lambda: runs(out, "often"), what="the first run", within=60)
    so_far = len(runs(out, "often"))
    until(lambda: len(runs(out, "often")) > so_far, what="a run, so that the next slot is far", within=60)
    assert call(app, "schedule", "skip", "often", "--why", "floods").exit_code == 0
    (found,) = answers(call(app, "schedule", "list", "--json"))
    skipped = found["skipped"]["slot"]
    leader.kill()
    until(lambda: len([slot for slot, _ in runs(out, "often") if slot > skipped]) >= 2, what="later runs", within=90)
    later = sorted(slot for slot, _ in runs(out, "often") if slot >= skipped)
    assert [round(slot - skipped) for slot in later[:2]] == [8, 16]
    (found,) = answers(call(app, "schedule", "list", "--json"))
    assert found["not_fired"] == {"skipped_by_hand": 1}


def test_tools_beside_a_beat(led: None, schedule: Schedule, out: Path) -> None:
    """A trigger runs and the slots go on; list and next tell what beat wrote; adopt is refused while it leads."""
    (one,) = answers(schedule("trigger", "often", "--json"))
    until(lambda: one["task_id"] in [task_id for _, task_id in runs(out, "often")], what="the triggered run", within=60)
    found = listed(schedule)
    assert found["often"]["last_slot"] is not None
    assert "Did you mean" in found["misspelt"]["problem"]
    assert found["misspelt"]["problem_since"] is not None
    (following,) = answers(schedule("next", "often", "--json"))
    until(
        lambda: following["slot"] in [slot for slot, _ in runs(out, "often")], what="the slot that was told", within=60
    )
    refused = schedule("adopt", "--since", "1h")
    assert refused.exit_code == 1
    assert "a beat leads" in refused.stderr
    slots = sorted(slot for slot, task_id in runs(out, "often") if task_id == task_id_of("often", slot))
    assert len(slots) == len(set(slots))
