"""Work of which everybody knows how it has to end, and the numbers of the worker beside it.

Three independent parties: the producer, which knows how often it has asked for what; the bodies, each of which notes
in a file how its delivery is about to end; and the page of the worker. What no body can note (a revoke, a replay)
the producer does.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from uuid import uuid4

from kombu import Connection

from celery_hardened import Hardening, Query
from tests.support.client import listening
from tests.support.health import Probed
from tests.support.notes import notes
from tests.support.until import until

#: The text of the app.
COUNTS = Path(__file__).with_name("counts_app.py").read_text()

_SERIES: Final = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')

#: Tasks that all pools run alike, and how many deliveries each makes.
EVERYWHERE: Final = {
    "ok": 1,
    "plain": 1,
    "broken": 1,
    "exiting": 1,
    "flaky": 3,
    "plain_flaky": 2,
    "rejecting": 1,
    "put_back": 2,
    "ignoring": 1,
    "replacing": 1,  # and one ``ok``
}

#: Those that end their process, or are ended with it.
PROCESSES: Final = {
    "killed": 2,
    "poisonous": 3,
    "plain_killed": 1,
    "soft_limit": 1,
    "hard_limit": 1,
    "listed_limit": 2,
}

#: Outcomes of deliveries that no pool ever had.
NEVER_ACCEPTED: Final = ("unknown", "malformed", "revoked", "expired")

Key = tuple[str, ...]


@dataclass
class Page:
    """The numbers that a worker shows."""

    series: dict[str, dict[Key, float]]

    @classmethod
    def parse(cls, text: str) -> Page:
        found: dict[str, dict[Key, float]] = {}
        for line in text.splitlines():
            match = _SERIES.match(line)
            if match and not line.startswith("#"):
                values = tuple(value for _, value in _LABEL.findall(match[2] or ""))
                found.setdefault(match[1].removeprefix("celery_hardened_"), {})[values] = float(match[3])
        return cls(found)

    def of(self, name: str) -> dict[Key, float]:
        """Series of a metric that are not 0, by the values of their labels."""
        return {key: value for key, value in self.series.get(name, {}).items() if value}

    def outcomes(self) -> dict[Key, float]:
        """By task and outcome."""
        found: Counter[Key] = Counter()
        for (task, _, outcome), value in self.of("tasks_total").items():
            found[task, outcome] += int(value)
        return dict(found)


@dataclass
class Counts:
    """One run of such work.

    Args:
        project: The app module, on the producer's side.

        out: The folder of notes.
    """

    project: ModuleType
    out: Path
    probed: Probed
    asked: Counter[Key] = field(default_factory=Counter)
    """What no body notes: task and outcome."""

    routed: dict[str, str] = field(default_factory=dict)
    """Queues of tasks, where they are not the default one."""

    def page(self) -> Page:
        return Page.parse(self.probed.metrics())

    def send(self, name: str, number: int = 1) -> None:
        """Ask *number* times for a task that notes its ends itself."""
        task = getattr(self.project, name)
        for _ in range(number):
            task.delay(uuid4().hex)

    # --- what bodies cannot note -----------------------------------------------------------------------------

    def send_expired(self, number: int) -> None:
        """RabbitMQ drops what has expired itself: no worker gets it, and none counts it."""
        if self.project.app.conf.broker_url.startswith("amqp"):
            return
        for _ in range(number):
            self.project.ok.apply_async(("late",), expires=datetime.now(timezone.utc) - timedelta(minutes=1))
        self.asked["proj.ok", "expired"] += number

    def send_revoked(self, number: int) -> None:
        ids = [uuid4().hex for _ in range(number)]
        listening(self.project.app)
        told = self.project.app.control.revoke(ids, reply=True, timeout=30, limit=1)
        assert told, "no worker has heard of the revoke"
        for task_id in ids:
            self.project.ok.apply_async(("never",), task_id=task_id)
        self.asked["proj.ok", "revoked"] += number

    def send_unknown(self, number: int) -> None:
        for _ in range(number):
            self.project.app.send_task("proj.nobody", (1,))
        self.asked["proj.nobody", "unknown"] += number

    def send_malformed(self, number: int) -> None:
        app = self.project.app
        with Connection(app.conf.broker_url) as connection, connection.channel() as channel:
            for _ in range(number):
                connection.Producer(channel).publish(
                    b"{nothing", exchange="", routing_key=app.conf.task_default_queue, content_type="application/json"
                )
        self.asked["none", "malformed"] += number

    def send_replayed(self, number: int) -> None:
        order = uuid4().hex
        self.project.once.delay(order).get(timeout=180)
        for _ in range(number):
            self.project.once.delay(order)
        self.asked["proj.once", "replayed"] += number

    def send_waiting(self) -> None:
        """Two messages of one key: the second waits, as often as it is delivered too early, and is then replayed."""
        second = self._send_second("busy", "waited")
        second.get(timeout=120)
        self.asked["proj.busy", "replayed"] += 1
        came = notes(self.out, "received").count(second.id)
        assert came > 1, "the second message did not have to wait"
        self.asked["proj.busy", "waited"] += came - 1

    def send_duplicate(self) -> None:
        """A second message of a key whose first run goes on, and a task that skips such."""
        self._send_second("skipping", "deduplicated")
        self.asked["proj.skipping", "deduplicated"] += 1

    def _send_second(self, task_name: str, outcome: str) -> Any:
        order, name = uuid4().hex, f"proj.{task_name}"
        task = getattr(self.project, task_name)
        before = self.page().outcomes().get((name, outcome), 0)
        task.delay(order)
        until(lambda: f"long {order}" in notes(self.out, "begun"), within=120, what="the first run to begin")
        second = task.delay(order)
        until(lambda: second.id in notes(self.out, "received"), within=60, what="the second message to come")
        # Not before it was found too early: the first run is not to be over by then.
        until(lambda: self.page().outcomes().get((name, outcome), 0) > before, within=60, what=f"it to be {outcome}")
        Path(self.out, f"end-{order}").touch()
        return second

    def send_terminated(self) -> None:
        task_id = self.project.endless.delay("e").id
        until(lambda: f"endless {task_id}" in notes(self.out, "begun"), within=60, what="the endless task to begin")
        self.project.app.control.revoke(task_id, terminate=True)
        self.asked["proj.endless", "terminated"] += 1

    # --- the truth -------------------------------------------------------------------------------------------------

    def truth(self) -> Counter[Key]:
        """How every delivery has ended, or will: by task and outcome."""
        found = Counter(self.asked)
        for line in notes(self.out, "truth"):
            task, outcome = line.split()
            found[task, outcome] += 1
        return found

    def difference(self) -> dict[Key, tuple[float, float]]:
        """Where page and truth are not one: what the page says, and what is so."""
        page, truth = self.page().outcomes(), self.truth()
        return {key: (page.get(key, 0), truth[key]) for key in {*page, *truth} if page.get(key, 0) != truth[key]}

    def wait(self, deliveries: int, *, within: float) -> None:
        """Until *deliveries* have ended by the truth, and by the page."""

        def ended() -> bool:
            return sum(self.truth().values()) == deliveries == sum(self.page().outcomes().values())

        try:
            until(ended, within=within, every=0.5, what=f"{deliveries} deliveries to end")
        except AssertionError as late:
            said, so = sum(self.page().outcomes().values()), sum(self.truth().values())
            raise AssertionError(f"{late}: page {said}, truth {so}, differences {self.difference()}") from late

    # --- the other numbers -------------------------------------------------------------------------------------------

    def check_the_rest(self) -> None:
        """Numbers beside the outcomes that follow from the same truth."""
        page, truth = self.page(), self.truth()
        ended: dict[str, int] = Counter()
        for (_, outcome), number in truth.items():
            ended[outcome] += number
        default = self.project.app.conf.task_default_queue
        elsewhere = {
            (task, queue, outcome)
            for task, queue, outcome in page.of("tasks_total")
            if queue != self.routed.get(task, default)
        }
        assert not elsewhere, f"counted for another queue than the message came from: {elsewhere}"
        accepted = sum(truth.values()) - sum(ended[outcome] for outcome in NEVER_ACCEPTED)
        assert {queue for (queue,) in page.of("task_queue_wait_seconds_count")} == {default, *self.routed.values()}
        waits = sum(page.of("task_queue_wait_seconds_count").values())
        assert waits == accepted, f"{waits} waits of {accepted} deliveries that the pool had"
        for task in {task for task, _ in truth}:
            well = truth[task, "success"] + truth[task, "ignore"]
            timed = page.of("task_duration_seconds_count").get((task, "ok"), 0)
            assert timed == well, f"{task}: {timed} run times of {well} runs that ended well"
        raised = {key: int(value) for key, value in page.of("task_exceptions_total").items()}
        assert raised.get(("proj.broken", "ValueError"), 0) == truth["proj.broken", "failure"]
        assert raised.get(("proj.flaky", "ConnectionError"), 0) == truth["proj.flaky", "retry"]
        deaths = ended["worker_lost"] + ended["poison"]
        assert sum(page.of("pool_children_lost_total").values()) == deaths
        written: Counter[Key] = Counter()
        store = Hardening.expect(self.project.app).dead_letters
        for stored in map(store.get, list(store.ids(Query()))):
            written[stored.letter.task or "none", stored.letter.queue, stored.letter.reason] += 1
        assert {key: int(value) for key, value in page.of("dead_letters_written_total").items()} == written


def deliveries(plan: dict[str, int]) -> int:
    """How many deliveries a plan (task: how often it is sent) makes."""
    number = sum((EVERYWHERE | PROCESSES).get(name, 1) * count for name, count in plan.items())
    return number + plan.get("replacing", 0)


def wait_for(counts: Counts, plan: dict[str, int], *, within: float) -> Any:
    """All of *plan* has ended, and with it what else was asked."""
    extra = sum(counts.asked.values())
    bodies = sum(1 for line in notes(counts.out, "truth") if line.split()[0] in _BESIDE)
    counts.wait(deliveries(plan) + extra + bodies, within=within)


#: Tasks that are sent by the methods above, not by a plan; their bodies note a success each.
_BESIDE: Final = ("proj.once", "proj.busy", "proj.skipping")
