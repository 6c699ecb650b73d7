"""A real Prometheus scrapes real processes: the dashboard has data, and every alert is provoked once and fires.

The expressions are those that are shipped; their windows and pauses are a sixtieth, so that minutes are seconds.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest
import yaml

from celery_hardened.metrics.catalogue import HTTP_FAILURES, QUEUE_CONSUMERS, QUEUE_DEAD, QUEUE_MISSING
from celery_hardened.metrics.dashboard import dashboard
from celery_hardened.metrics.rules.file import alerts_file
from celery_hardened.metrics.rules.terms import Terms, Thresholds
from tests.fixtures.beats import StartBeat
from tests.fixtures.processes import LoadProject, StartProcess, StartWorker
from tests.fixtures.prometheus import StartPrometheus
from tests.support.broker import Broker
from tests.support.notes import notes
from tests.support.ports import free_port
from tests.support.prometheus import Prometheus
from tests.support.tcp_proxy import TcpProxy
from tests.support.until import until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.parametrize("broker", ["redis"], indirect=True)]

WATCHED = (Path(__file__).parents[1] / "support" / "watched_app.py").read_text()

#: What is small enough to be crossed in seconds, and large enough for a busy machine.
LIMITS = Thresholds(
    oldest_age=4, drain=4, min_volume=5, stuck=8, letter_age=4, beat_silent=6, stale=8, failure_ratio=0.05
)

#: These count starts of processes, and tries of a port that are seconds apart: a tenth, not a sixtieth.
SLOWER = {"CeleryProcessRestarts", "CeleryEndpointTaken"}

#: Begin with the app: a schedule that cannot be used, one that overlaps, and a queue that nobody measures.
AT_ONCE = {"CeleryBeatScheduleUnusable", "CeleryBeatRunsOverlap", "CeleryQueueNotMeasured"}

SCHEDULES = {
    "often": {"task": "proj.fine", "schedule": 1.0, "missed_run": "skip", "grace": 5.0},
    "overlaps": {"task": "proj.nap", "schedule": 1.0, "args": (5,), "overlap": "skip", "grace": 5.0},
    "unusable": {"task": "proj.fine", "schedule": 1.0, "overlap": "perhaps"},
}

#: What only RabbitMQ tells.
RABBITMQ_ONLY = {family.name for family in (QUEUE_CONSUMERS, QUEUE_MISSING, QUEUE_DEAD)}


def scaled(terms: Terms, keep: Callable[[str], bool]) -> str:
    """The file of *terms* with those alerts alone."""
    found = yaml.safe_load(alerts_file(terms))
    for group in found["groups"]:
        group["name"] += f"-{terms.scale:.3f}"
        group["rules"] = [rule for rule in group["rules"] if keep(rule["alert"])]
    return str(yaml.safe_dump(found))


def expressions() -> Iterator[tuple[str, str]]:
    """Of each panel, what it asks, with the variables filled in as Grafana would."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            text = re.sub(r"\$(namespace|job|queue)", ".*", target["expr"])
            yield (
                f"{panel['title']} {target['refId']}",
                text.replace("$__rate_interval", "10s").replace("$__range", "60s"),
            )


class Watch:
    """What a Prometheus has seen since the test began."""

    def __init__(self, server: Prometheus) -> None:
        self.server = server
        self.since = time.time()

    def fired(self) -> set[str]:
        return self.server.fired(since=self.since, now=time.time())

    def wait(self, *names: str, within: float = 90.0) -> None:
        """Until each of them has fired."""
        try:
            until(lambda: set(names) <= self.fired(), within=within, every=0.5, what=f"{', '.join(names)} to fire")
        except AssertionError as late:
            now = [(one["labels"]["alertname"], one["state"]) for one in self.server.alerts()]
            raise AssertionError(f"{late}; missing: {set(names) - self.fired()}; now: {now}") from late

    def without_data(self, *, of: str = "", but: Collection[str] = ()) -> list[str]:
        """Panels whose expressions, of those that name *of*, gave nothing."""
        return [
            name
            for name, expr in expressions()
            if of in expr and not any(word in expr for word in but)
            if not self.server.over(expr, since=self.since, now=time.time())
        ]


@contextmanager
def held(port: int) -> Iterator[None]:
    """Another process has *port*."""
    with closing(socket.socket()) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        yield


@pytest.mark.timeout(600)
def test_everything_fires_once(
    broker: Broker,
    environment: dict[str, str],
    records_url: str,
    out: Path,
    load_project: LoadProject,
    start_worker: StartWorker,
    start_beat: StartBeat,
    start_process: StartProcess,
    start_proxy: Callable[[int], TcpProxy],
    start_prometheus: StartPrometheus,
) -> None:
    """Calm first: nothing fires but what is wrong from the start. Then each alert is provoked by what it is about,
    and fires; and every panel of the dashboard has had data."""
    busy = f"{broker.queue}-busy"
    env = {"SCHEDULES": repr(SCHEDULES)}
    names = ("exporter", "again", "worker", "second", "beat", "standby", "web")
    ports = {name: free_port() for name in names}
    here = {name: {**env, "HARDENED_HTTP": f"127.0.0.1:{port}"} for name, port in ports.items()}
    address = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    jobs = {
        "exporter": [address["exporter"], address["again"]],
        "worker": [address["worker"], address["second"]],
        "beat": [address["beat"], address["standby"]],
        "web": [address["web"]],
    }
    terms = {
        scale: Terms(
            LIMITS,
            app="proj",
            queues=(broker.queue, busy, "forgotten"),
            beat=True,
            broker="redis",
            selector='namespace="prod"',
            scale=scale,
        )
        for scale in (1 / 60, 1 / 10)
    }
    proxy = start_proxy(broker.port)
    through = re.sub(r":\d+/", f":{proxy.port}/", records_url)
    export = ("python", "-m", "celery", "-A", "proj", "hardened", "exporter", "--every", "0.5", "-Q", busy)

    exporter = start_process(WATCHED, *export, env=here["exporter"])
    worker = start_worker(WATCHED, concurrency=5, env={**here["worker"], "RECORDS_URL": through}, wait=False)
    second = start_worker(WATCHED, concurrency=1, queues=[busy], env=here["second"], wait=False)
    beat = start_beat(WATCHED, env=here["beat"], leads=False)
    start_process(WATCHED, "python", "proj.py", str(ports["web"]), env=env)
    worker.wait_ready()
    second.wait_ready()
    beat.wait_leading()
    proj: Any = load_project(WATCHED, env)

    rules = [
        scaled(terms[1 / 60], lambda name: name not in SLOWER),
        scaled(terms[1 / 10], lambda name: name in SLOWER),
    ]
    watch = Watch(start_prometheus(jobs, rules=rules))
    every = {rule["alert"] for text in rules for group in yaml.safe_load(text)["groups"] for rule in group["rules"]}

    # --- calm ---------------------------------------------------------------------------------------------------
    # Before its first scrape Prometheus knows of nobody, which a pause of a minute would outlast, and a second not.
    until(
        lambda: list(watch.server.targets().values()).count("up") == 5 and watch.server.firing() <= AT_ONCE,
        within=60,
        what="all that runs to be scraped",
    )
    watch.since = time.time()
    proj.fine.delay(1)
    proj.flaky.delay()
    watch.wait(*AT_ONCE)
    assert watch.fired() <= AT_ONCE

    # --- tasks go wrong, more comes in than is done, a beat cannot have its port ----------------------------------
    with held(ports["standby"]):
        standby = start_beat(WATCHED, env=here["standby"], leads=False)
        proj.nap.delay(40)
        for name in ("boom", "flood", "refuse"):
            (out / name).touch()
        for number in range(22):  # two more classes of exceptions than a task has room for
            proj.raises.delay(number)
        for number in range(3):
            proj.broken.delay(number)
            proj.limited.delay()
        proj.killer.delay()
        proj.overtaken.delay("o-1")
        watch.wait(
            "CeleryDeadLettersGrowing",
            "CeleryDeadLettersForgotten",
            "CeleryTaskFailureRatio",
            "CeleryTaskTimeouts",
            "CeleryTaskStuck",
            "CeleryWorkerLost",
            "CeleryPublishFailed",
            "CeleryMetricsIncomplete",
            "CeleryLabelsFolded",
            "CeleryQueueOldestMessage",
            "CeleryQueueDrainTime",
        )

        for name in ("boom", "flood", "refuse"):
            (out / name).unlink()

        # --- a run cannot write down its end; a consumer is lost; a process starts again and again -----------------
        proj.unkept.delay("o-2")
        until(lambda: notes(out, "unkept"), within=60, what="the run whose end cannot be kept")
        proxy.down()
        (out / "cut").touch()
        proj.app.control.broadcast("deafen", destination=["w3@test"])
        for _ in range(4):
            again = start_process(WATCHED, *export, env=here["again"])
            until(
                lambda: watch.server.targets().get(address["again"]) == "up",
                within=60,
                every=0.2,
                what="the process that restarts to be scraped",
            )
            again.kill_group()
            until(
                lambda: watch.server.targets().get(address["again"]) == "down",
                within=60,
                every=0.2,
                what="it to be missed",
            )
    watch.wait(
        "CeleryEndpointTaken",
        "CeleryProcessRestarts",
        "CeleryEffectsUnfinished",
        "CeleryWorkerNotConsuming",
        "CeleryQueueNoConsumer",
        "CeleryQueueStalled",
    )
    # One scrape of the standby fires its alert; its panel is a rate, and needs two.
    until(lambda: not watch.without_data(of=HTTP_FAILURES.name), within=60, every=0.5, what="failures to listen")
    standby.kill_group()
    proxy.heal()

    # --- the main loop hangs; then the worker sleeps for longer than its leases last --------------------------------
    until(lambda: worker.running and proj.app.control.ping(destination=["w2@test"]), within=60, what="the worker")
    proj.app.control.broadcast("hold_up", arguments={"seconds": 14.0}, destination=["w2@test"])
    watch.wait("CeleryWorkerHangs")
    proj.nap.delay(500)  # it goes on when the worker wakes, however long the other one takes to start
    until(lambda: "500" in notes(out, "naps"), within=60, what="a run")
    worker.signal(SIGSTOP)
    start_worker(WATCHED, concurrency=1)
    until(lambda: notes(out, "naps").count("500") == 2, within=60, what="another worker to have it")
    worker.signal(SIGCONT)
    watch.wait("CeleryLeasesLost")

    # --- beat is silent, then finds slots that it has missed; at last nobody looks ----------------------------------
    beat.pause()
    watch.wait("CeleryBeatSilent", "CeleryBeatNoLeader")
    beat.resume()
    watch.wait("CeleryBeatRunsMissed")
    exporter.kill_group()
    watch.wait("CeleryQueueMetricsStale")

    assert every <= watch.fired()
    assert watch.without_data(but=RABBITMQ_ONLY) == []
    words = json.dumps(watch.server.alerts())
    assert "{{" not in words
    assert "error" not in words.lower()
