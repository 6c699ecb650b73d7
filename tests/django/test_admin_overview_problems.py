"""What the overview calls a problem, and what it does not: facts in, problems out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_hardened.attendance.record import Lost, Present, WorkerRecord
from celery_hardened.beat.leader_store import LeaderRecord
from celery_hardened.contrib.django.overview.facts import (
    OTHERS,
    Beats,
    Facts,
    Letters,
    Missed,
    Queues,
    Silence,
    Workers,
)
from celery_hardened.contrib.django.overview.problems import Limits, Problem, problems
from celery_hardened.contrib.django.overview.problems_of_workers import current
from celery_hardened.metrics.queue_reading import BrokerReading, QueueReading
from celery_hardened.metrics.rules.file import groups_of
from celery_hardened.metrics.rules.terms import Terms
from celery_hardened.metrics.rules.worded import worded

NOW = 1_700_000_000.0

LIMITS = Limits(terms=Terms(app="shop"))

WORKER = WorkerRecord(
    name="w1@host", pid=7, pool="prefork", concurrency=4, began=7200.0, queues=("mail",), turned=0.4, counts=True,
    ended={"mail": 2.0},
)  # fmt: skip

LEADER = LeaderRecord(
    server=NOW, term=3, identity={"host": "h1", "pid": 9}, leads=True, since=NOW - 90, tick=NOW - 0.3, clock=NOW,
    left=0.9, how="free",
)  # fmt: skip

GONE = LeaderRecord(server=NOW, term=3, identity={"host": "h1", "pid": 9}, leads=False, clock=NOW - 40, how="expired")


def waits(number: int = 5, oldest: float | None = 1.0, consumers: int | None = None, **more: Any) -> Queues:
    """A queue ``mail`` in which so many wait."""
    queues = {"mail": QueueReading(waiting=number, oldest=oldest, consumers=consumers)}
    return Queues(kind="redis", reading=BrokerReading(queues=queues), names=("mail",), **more)


def there(*records: WorkerRecord, silent: float = 1.0) -> Workers:
    return Workers(present=tuple(Present(record, silent) for record in records))


WELL = Facts(
    queues=waits(0, 0.0), workers=there(WORKER), beats=Beats(leader=LEADER, records=2), letters=Letters(), schedules=2
)


def found(facts: Facts, limits: Limits = LIMITS) -> list[Problem]:
    return list(problems(facts, limits))


def only(facts: Facts, limits: Limits = LIMITS) -> Problem:
    (one,) = found(facts, limits)
    return one


@pytest.mark.parametrize(
    "facts",
    [
        WELL,
        Facts(),
        replace(WELL, workers=there()),
        replace(WELL, workers=None),
        replace(WELL, queues=waits(5, 30.0)),
        replace(WELL, queues=waits(5, 30.0), workers=there()),
        replace(WELL, queues=waits(50_000, 400.0)),
        replace(WELL, beats=Beats(leader=GONE), schedules=0),
        replace(WELL, beats=Beats(leader=replace(GONE, term=0, identity={}, clock=None)), schedules=0),
        replace(WELL, beats=Beats(leader=replace(GONE, term=0, identity={}, clock=None)), schedules=None),
        replace(WELL, beats=Beats(leader=replace(GONE, clock=NOW - 3))),
        replace(WELL, letters=Letters(open=3, oldest=3600.0, by_queue={"mail": 3})),
        replace(WELL, workers=there(replace(WORKER, stopping=True, missing=("mail",), deaf=900.0, turned=900.0))),
        replace(WELL, workers=there(replace(WORKER, cancelled=("mail",), queues=()))),
        replace(WELL, workers=there(replace(WORKER, missing=("mail",), queues=(), deaf=6.0))),
        replace(WELL, workers=there(replace(WORKER, tried=2.0, turned=8.0, queues=()))),
        replace(WELL, workers=there(WORKER, silent=12.0)),
        replace(WELL, workers=there(WORKER, silent=3000.0)),
        replace(WELL, workers=Workers(lost=(Lost("mail", "w1@host", "send", 1200.0),))),
        replace(WELL, beats=Beats(leader=LEADER, missed=(Missed("report", 0, 9000.0),), missed_ever=4)),
    ],
    ids=[
        "idle and well", "nothing known", "idle without workers", "workers unknown", "a short wait",
        "a restart of the only worker", "much work", "beats stopped, no schedules", "never a beat, no schedules",
        "never a beat, tables unknown", "fail-over", "old letters", "stopping", "told not to consume",
        "deaf for a moment", "reconnecting", "late word", "long gone", "lease lost long ago", "missed long ago",
    ],
)  # fmt: skip
def test_no_false_alarm(facts: Facts) -> None:
    """A system that idles, works, restarts or was told so has no problem; nor has one of which nothing is known."""
    assert found(facts) == []


def test_nobody_leads() -> None:
    """Where schedules are enabled, or cannot be counted: in the alert's words, with the last leader and since when."""
    for schedules in (2, None):
        one = only(replace(WELL, beats=Beats(leader=GONE), schedules=schedules))
        assert (one.alert, one.severity, one.place) == ("CeleryBeatNoLeader", "critical", "schedules")
        assert one.what == "No beat leads: no schedule fires"
        assert "for about 40s" in one.extent
        assert "h1 (pid 9)" in one.extent
        assert "celery -A shop hardened leader" in one.do


def test_no_beat_yet() -> None:
    """Enabled schedules that no beat of ours has ever led are told, without the claim that they do not fire."""
    one = only(replace(WELL, beats=Beats(leader=replace(GONE, term=0, identity={}, clock=None))))
    assert one.severity == "warning"
    assert "2 schedules are enabled" in one.what
    assert "If another scheduler fires them" in one.do


def test_a_leader_that_stands_still() -> None:
    """It holds the lead, and its main loop does not turn."""
    one = only(replace(WELL, beats=Beats(leader=replace(LEADER, tick=NOW - 130))))
    assert (one.alert, one.what) == (
        "CeleryBeatSilent",
        "No beat has given a sign of life for 2m 10s: no schedule fires",
    )


def test_missed_runs_and_unusable_schedules() -> None:
    """Each schedule that missed runs in the last hour; and how many cannot be used."""
    facts = replace(WELL, beats=Beats(leader=LEADER, unusable=2, missed=(Missed("report", 3, 90.0),)))
    missed, unusable = found(facts)
    assert missed.what.startswith("report: slots that were not fired (missed): 3")
    assert "1m 30s ago" in missed.extent
    assert (missed.place, missed.subject) == ("schedules", {"q": "report"})
    assert unusable.what == "Schedules that cannot be used, and do not fire: 2"


@pytest.mark.parametrize("workers", [there(), there(replace(WORKER, queues=("bills",))), there(WORKER, silent=1000.0)])
def test_nobody_takes(workers: Workers) -> None:
    """Messages wait, and no worker that speaks takes from their queue."""
    one = only(replace(WELL, queues=waits(5, 61.0), workers=workers))
    assert (one.alert, one.severity) == ("CeleryQueueNoConsumer", "critical")
    assert one.what == "Queue mail: no worker takes from it; messages that wait: 5"
    assert one.extent == "the oldest for 1m 1s"


def test_the_brokers_word_counts_where_it_gives_one() -> None:
    """RabbitMQ knows its consumers, those of other packages too; it does not tell ages, so what was seen counts."""
    silent = there()
    queues = waits(5, None, consumers=0, waiting_for={"mail": 61.0})
    assert only(replace(WELL, queues=queues, workers=silent)).alert == "CeleryQueueNoConsumer"
    assert found(replace(WELL, queues=waits(5, None, consumers=0, waiting_for={"mail": 2.0}), workers=silent)) == []
    assert found(replace(WELL, queues=waits(5, None, consumers=1, waiting_for={"mail": 61.0}), workers=silent)) == []


def test_nothing_ends() -> None:
    """Messages wait for long, workers take from the queue, and none of them has ended work there."""
    idle = replace(WORKER, ended={"mail": 700.0})
    for record in (idle, replace(WORKER, ended={})):
        one = only(replace(WELL, queues=waits(5, 650.0), workers=there(record)))
        assert one.alert == "CeleryQueueStalled"
        assert one.what == "Queue mail: for 10m nothing has ended; messages that wait: 5"


@pytest.mark.parametrize(
    "workers",
    [
        there(WORKER),
        there(replace(WORKER, ended={}, began=500.0)),
        there(replace(WORKER, ended={}, counts=False)),
        there(replace(WORKER, ended={}), replace(WORKER, name="w2@host")),
    ],
    ids=["work ends", "began lately", "does not count", "ends elsewhere"],
)
def test_what_is_only_slow(workers: Workers) -> None:
    """Work ends, or nobody knows: then the queue is slow, which is said, and is no stall."""
    one = only(replace(WELL, queues=waits(5, 650.0), workers=workers))
    assert (one.alert, one.severity) == ("CeleryQueueOldestMessage", "warning")
    assert one.what == "Queue mail: its oldest message has waited 10m 50s"


def test_workers_that_do_not_take() -> None:
    """Deaf, without a connection, hanging, gone: each has its own words."""
    deaf = only(replace(WELL, workers=there(replace(WORKER, queues=(), missing=("mail",), deaf=31.0))))
    assert (deaf.alert, deaf.extent) == ("CeleryWorkerNotConsuming", "for 31s")
    assert deaf.what == "w1@host is up and does not take from queue mail"
    apart = only(replace(WELL, workers=there(replace(WORKER, queues=(), tried=1.0, turned=44.0))))
    assert "no connection to its broker for 45s" in apart.extent
    hangs = only(replace(WELL, workers=there(replace(WORKER, turned=300.0))))
    assert hangs.alert == "CeleryWorkerHangs"
    assert "not turned for 5m 1s" in hangs.what
    gone = only(replace(WELL, workers=there(WORKER, silent=45.0)))
    assert gone.what == "w1@host has said nothing for 45s, and did not say that it ends"
    assert gone.extent == "it took from mail"


def test_a_restart_under_the_same_name_replaces_the_old_run() -> None:
    """What was killed is no problem once its successor speaks; two that speak at once are both shown."""
    before, after = Present(replace(WORKER, pid=1), 50.0), Present(replace(WORKER, pid=2, began=30.0), 1.0)
    assert [one.record.pid for one in current((before, after))] == [2]
    twins = (Present(replace(WORKER, pid=1), 2.0), Present(replace(WORKER, pid=2), 1.0))
    assert len(current(twins)) == 2


def test_leases_lost() -> None:
    """By queue, of the last quarter of an hour, with whose they were."""
    lost = (Lost("mail", "w1@host", "send", 30.0), Lost("mail", "w2@host", "", 60.0), Lost("mail", "w3", "x", 1000.0))
    one = only(replace(WELL, workers=Workers(lost=lost)))
    assert one.what == "Queue mail: messages that went to another worker while they ran: 2"
    assert one.extent == "a task on w2@host, send on w1@host, the latest 30s ago"


def test_dead_letters() -> None:
    """Growing, by queue and with the list of just those; and forgotten."""
    letters = Letters(open=9, oldest=300_000.0, by_queue={"mail": 7, "": 1}, recently={"mail": 2, "": 1, OTHERS: 1})
    mail, none, others, forgotten = found(replace(WELL, letters=letters))
    assert mail.what == "Queue mail: more dead letters in 15m: 2"
    assert [one.subject for one in (mail, none, others)] == [{"queue": "mail"}, {"none": "queue"}, {}]
    assert "celery -A shop hardened dlq stats" in mail.do
    assert forgotten.what == "A dead letter has been open for 3d 11h 20m 0s"


def test_the_silent_are_told_first() -> None:
    """Who does not answer hides what else is wrong; then come the others by weight."""
    facts = replace(
        WELL,
        letters=Letters(open=1, recently={"mail": 1}),
        beats=Beats(leader=GONE),
        silent={"the broker": Silence("refused", 12.0)},
    )
    assert [one.severity for one in found(facts)] == ["critical", "critical", "warning"]
    first = found(facts)[0]
    assert first.what == "The broker does not answer: refused"
    assert first.extent == "for 12s"


def test_a_problem_keeps_its_key() -> None:
    """Numbers change with each reading, and are no news."""
    early, late = (only(replace(WELL, queues=waits(n, 61.0 + n), workers=there())) for n in (5, 9))
    assert early.key == late.key
    assert early.what != late.what


def test_every_rule_can_be_worded() -> None:
    """No alert has an action of a template that the page cannot fill in."""
    labels = dict.fromkeys(("queue", "task", "schedule", "outcome", "instance", "job", "source", "label", "store"), "x")
    terms = Terms(app="shop", queues=("x",))
    for group in groups_of(terms):
        for rule in group.rules:
            said = worded(rule.name, terms, labels, 1.5)
            assert "{{" not in said.summary + said.do, rule.name
    stale = worded("CeleryQueueMetricsStale", terms, {}, 5)
    assert stale.summary == "Nobody knows how the queues are: no exporter is scraped"
