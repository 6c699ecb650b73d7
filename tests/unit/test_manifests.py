"""``hardened manifests``: what Kubernetes is told passes the schemas of several releases, and agrees with the app."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from celery import Celery
from kombu import Queue

from celery_hardened import HardenedTask
from celery_hardened.cli import hardened
from celery_hardened.errors import ConfigurationError
from celery_hardened.kubernetes.manifests import manifests
from celery_hardened.kubernetes.plan import LIVE_EVERY, LIVE_FAILURES, MARGIN, Plan, grace_for, slug
from celery_hardened.metrics.catalogue import BY_NAME
from celery_hardened.pipeline.beat import HardenedScheduler
from celery_hardened.settings import Settings
from tests.fixtures.servers import missing
from tests.support import cli
from tests.support.cli import call
from tests.support.custom_resources import SCHEMAS

#: The oldest release in which a liveness probe has a grace period of its own by default, and later ones.
RELEASES = ["1.25", "1.28", "1.31", "1.34"]

VARIANTS = [
    [],
    ["--autoscaler", "hpa"],
    ["--autoscaler", "none", "--scraping", "annotations"],
    ["--queues", "mail,mail.slow", "--queues", "reports", "--min", "0"],
    ["--queues", 'odd: #1 "{a|b}" \\', "--autoscaler", "hpa", "--image", "registry.example:5000/team/shop@sha256:0"],
    ["--name", "My_Shop", "--namespace", "prod", "--concurrency", "1", "--max", "100", "--grace", "7200"],
]


def make_app(**settings: Any) -> Celery:
    """A hardened app on Redis, unless *settings* say otherwise; nothing is connected to."""
    return cli.make_app(**{"broker_url": "redis://127.0.0.1:1/0", **settings})


def work() -> None:
    """The body of a task."""


def printed(app: Celery, *options: str) -> list[dict[str, Any]]:
    """The objects that the command prints."""
    result = call(app, "manifests", *options)
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.stdout))


def of(objects: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    (found,) = [one for one in objects if one["kind"] == kind and name in one["metadata"]["name"]]
    return found


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("options", VARIANTS, ids=lambda options: " ".join(options) or "default")
def test_objects_pass_the_schemas(options: list[str], release: str) -> None:
    """A misspelt or misplaced field is refused by none of the cluster's users, but here."""
    objects = printed(make_app(), *options)
    for one in objects:
        if one["kind"] in SCHEMAS:
            jsonschema.validate(one, SCHEMAS[one["kind"]])
        else:
            kubernetes_validate.validate(one, release, strict=True)
    kinds = [one["kind"] for one in objects]
    assert kinds.count("Deployment") == 2 + max(1, options.count("--queues"))
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(names) == len(set(names))


def test_the_schemas_refuse_what_is_wrong() -> None:
    """What passes would be worth nothing if everything did."""
    objects = printed(make_app())
    worker = of(objects, "Deployment", "worker")
    worker["spec"]["template"]["spec"]["terminationGracePeriodSecond"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(worker, RELEASES[-1], strict=True)
    scaled = of(objects, "ScaledObject")
    scaled["spec"]["triggers"][0]["metadata"]["threshold"] = 30
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(scaled, SCHEMAS["ScaledObject"])


def test_grace_is_longer_than_the_longest_task() -> None:
    """A worker that is told to end is not killed in the midst of a task that keeps its limit."""
    app = make_app()

    @app.task(base=HardenedTask, name="shop.short")
    def short() -> None: ...

    @app.task(base=HardenedTask, name="shop.report", time_limit=1800, soft_time_limit=1700)
    def report() -> None: ...

    objects = printed(app)
    spec = of(objects, "Deployment", "worker")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == 1800 + MARGIN
    # One that goes is counted as gone at once: another one may not go before it has drained.
    down = of(objects, "ScaledObject")["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] >= spec["terminationGracePeriodSeconds"]


def test_grace_of_an_app_that_sets_nothing() -> None:
    """Our own default limit for hardened tasks is what counts then."""
    app = make_app()
    app.task(base=HardenedTask, name="shop.ship")(work)
    spec = of(printed(app), "Deployment", "worker")["spec"]["template"]["spec"]
    limit = Settings().time_limit
    assert limit is not None
    assert spec["terminationGracePeriodSeconds"] >= limit + MARGIN


@pytest.mark.parametrize("limit", [1800.0, None])
def test_our_own_task_asks_for_no_grace(limit: float | None) -> None:
    """It goes on where it was when its worker is killed. The project's tasks alone say how long to wait."""
    app = make_app()
    app.task(base=HardenedTask, name="celery_hardened.takes_long", time_limit=limit, soft_time_limit=None)(work)
    spec = of(printed(app), "Deployment", "worker")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == 300 + MARGIN
    assert call(app, "manifests").stderr == ""


def test_grace_where_no_task_is_found() -> None:
    """An app whose tasks could not be seen here is given what ours get by default, not nothing."""
    spec = of(printed(make_app()), "Deployment", "worker")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == 300 + MARGIN


def test_a_limit_for_all_tasks_counts() -> None:
    app = make_app(task_time_limit=4000)
    app.task(name="shop.contained")(work)
    assert of(printed(app), "Deployment", "worker")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 4030


def test_tasks_without_a_limit_are_named() -> None:
    """No grace is long enough for them: whoever prints the manifests is told which they are."""
    app = make_app()
    app.task(name="shop.endless")(work)
    assert "No hard time limit: shop.endless." in call(app, "manifests").stderr


def test_a_grace_that_is_too_short_is_said() -> None:
    app = make_app(task_time_limit=600)
    app.task(name="shop.contained")(work)
    said = call(app, "manifests", "--grace", "60").stderr
    assert "--grace 60 is less than the longest time limit and 30 s, 630 s" in said
    assert call(app, "manifests", "--grace", "700").stderr == ""


def test_limits_have_one_rule() -> None:
    assert grace_for([]) == MARGIN
    assert grace_for([None, 10.5, 300]) == 300 + MARGIN
    assert slug("My Shop.v2_") == "my-shop-v2"
    assert slug("_") == "celery"


def test_the_probes_are_ours() -> None:
    """Every process answers all three, on the port that it is told; liveness has patience with a stall that ends."""
    objects = printed(make_app(hardened_health_stall=90))
    for part in ("worker", "beat", "exporter"):
        deployment = of(objects, "Deployment", part)
        one = container(deployment)
        port = next(port["containerPort"] for port in one["ports"] if port["name"] == "http")
        assert {"name": "HARDENED_HTTP", "value": str(port)} in one["env"]
        for probe, path in (("startup", "/startupz"), ("liveness", "/livez"), ("readiness", "/readyz")):
            assert one[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "http"}
        template = deployment["spec"]["template"]
        assert deployment["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert one["resources"]["requests"]["memory"]
    text = call(make_app(hardened_health_stall=90), "manifests").stdout
    assert f"started anew after {90 + LIVE_EVERY * LIVE_FAILURES} s" in text


def test_commands_are_those_of_the_command_line() -> None:
    """The exporter is told of every queue that some worker takes from, in words that its command understands."""
    objects = printed(make_app(), "--queues", "mail,mail.slow", "--queues", "reports")
    *celery, exporter, option, queues = container(of(objects, "Deployment", "exporter"))["command"]
    assert (celery[0], celery[-1], exporter) == ("celery", "hardened", "exporter")
    context = hardened.commands[exporter].make_context(exporter, [option, queues])
    assert context.params["queues"] == "mail,mail.slow,reports"


def test_two_beats_of_which_one_may_go() -> None:
    """A drained node, a release: one of them is always there."""
    objects = printed(make_app())
    beat = of(objects, "Deployment", "beat")
    assert beat["spec"]["replicas"] == 2
    assert beat["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 1
    assert of(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert scheduler_in(objects) == "hardened"


class Scheduler(HardenedScheduler):
    """A project's own, made of ours."""


def scheduler_in(objects: list[dict[str, Any]]) -> str:
    command = container(of(objects, "Deployment", "beat"))["command"]
    return str(command[command.index("--scheduler") + 1])


@pytest.mark.parametrize(
    ("said", "printed_as"),
    [
        ("hardened", "hardened"),
        ("hardened-django", "hardened-django"),
        # Of another's whose tables one of ours reads.
        ("django_celery_beat.schedulers:DatabaseScheduler", "hardened-django"),
        ("tests.unit.test_manifests:Scheduler", "tests.unit.test_manifests:Scheduler"),
        (Scheduler, "tests.unit.test_manifests:Scheduler"),
        ("celery_hardened.pipeline.beat.HardenedScheduler", "celery_hardened.pipeline.beat.HardenedScheduler"),
    ],
)
def test_beats_have_the_scheduler_of_the_app(said: Any, printed_as: str) -> None:
    """The word on the command line comes before ``beat_scheduler``: another one would fire none of its schedules."""
    app = make_app(beat_scheduler=said)
    assert scheduler_in(printed(app)) == printed_as
    assert call(app, "manifests").stderr == ""


@pytest.mark.parametrize("said", ["celery.beat:PersistentScheduler", "redbeat.RedBeatScheduler"])
def test_a_scheduler_that_is_not_ours_is_said(said: str) -> None:
    """Beats of ours are printed, and that they do not read what another one does."""
    app = make_app(beat_scheduler=said)
    assert scheduler_in(printed(app)) == "hardened"
    assert f"beat_scheduler is {said!r}, which is no scheduler of celery_hardened's" in call(app, "manifests").stderr


def test_the_apps_own_queues() -> None:
    """Without ``--queues`` all that the app names; and each group has what scales it by its own queues alone."""
    app = make_app(task_queues=[Queue("mail"), Queue("reports")])
    command = container(of(printed(app), "Deployment", "worker"))["command"]
    assert command[command.index("--queues") + 1] == "mail,reports"

    objects = printed(app, "--queues", "mail,mail.slow", "--queues", "reports", "--namespace", "prod")
    command = container(of(objects, "Deployment", "worker-mail"))["command"]
    assert command[command.index("--queues") + 1] == "mail,mail.slow"
    age, load = of(objects, "ScaledObject", "worker-mail")["spec"]["triggers"]
    only = r'{namespace="prod", queue=~"mail|mail\\.slow"}'
    assert age["metadata"]["query"] == f"max(celery_hardened_queue_oldest_age_seconds{only})"
    assert load["metadata"]["query"].count(only) == 2


@pytest.mark.parametrize("broker", ["amqp://127.0.0.1:1//", "memory://"])
def test_nothing_asks_for_an_age_that_is_never_told(broker: str) -> None:
    """On RabbitMQ the exporter tells no age. A trigger that asks for it would fail for ever, and keep every worker."""
    app = make_app(broker_url=broker)
    (load,) = of(printed(app), "ScaledObject")["spec"]["triggers"]
    assert load["name"] == "load"
    objects = printed(app, "--autoscaler", "hpa")
    (metric,) = of(objects, "HorizontalPodAutoscaler")["spec"]["metrics"]
    (rule,) = yaml.safe_load(of(objects, "ConfigMap")["data"]["config.yaml"])["externalRules"]
    assert metric["external"]["metric"]["name"] == rule["name"]["as"] == "celery_hardened_load"
    for one in (*objects, of(printed(app), "ScaledObject")):
        if one["kind"] == "ScaledObject":
            jsonschema.validate(one, SCHEMAS["ScaledObject"])
        elif one["kind"] == "HorizontalPodAutoscaler":
            kubernetes_validate.validate(one, RELEASES[-1], strict=True)


@pytest.mark.parametrize("queues", ["mail", "mail,mail.slow", 'odd: #1 "{a|b}" \\'])
def test_queries_are_promql_on_metrics_that_exist(queues: str, tmp_path: Any) -> None:
    """KEDA's and the adapter's queries are read by Prometheus, and name only what we export."""
    if shutil.which("promtool") is None:
        missing("prometheus")
    objects = printed(make_app(), "--queues", queues)
    queries = [trigger["metadata"]["query"] for trigger in of(objects, "ScaledObject")["spec"]["triggers"]]
    objects = printed(make_app(), "--queues", queues, "--autoscaler", "hpa")
    rules = yaml.safe_load(of(objects, "ConfigMap")["data"]["config.yaml"])["externalRules"]
    made = {rule["name"]["as"]: rule for rule in rules}
    for rule in rules:
        text = rule["metricsQuery"].replace("<<.Series>>", rule["seriesQuery"])
        queries.append(text.replace("<<.LabelMatchers>>", 'queue="x"'))
    asked = [metric["external"]["metric"] for metric in of(objects, "HorizontalPodAutoscaler")["spec"]["metrics"]]
    assert {metric["name"] for metric in asked} == set(made)
    assert [metric["selector"]["matchExpressions"][0]["values"] for metric in asked] == [queues.split(",")] * 2

    names = {name for query in queries for name in re.findall(r"celery_hardened_\w+", query)}
    assert names <= set(BY_NAME)
    groups = [{"name": "g", "rules": [{"record": f"r:{n}", "expr": query} for n, query in enumerate(queries)]}]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": groups}))
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_who_scales_is_the_only_one() -> None:
    """An ``apply`` does not set back the number of workers that a scaler has come to."""
    assert "replicas" not in of(printed(make_app()), "Deployment", "worker")["spec"]
    assert "replicas" not in of(printed(make_app(), "--autoscaler", "hpa"), "Deployment", "worker")["spec"]
    alone = printed(make_app(), "--autoscaler", "none", "--min", "3")
    assert of(alone, "Deployment", "worker")["spec"]["replicas"] == 3


def test_pods_are_found_by_prometheus() -> None:
    objects = printed(make_app())
    monitor = of(objects, "PodMonitor")
    for part in ("worker", "beat", "exporter"):
        labels = of(objects, "Deployment", part)["spec"]["template"]["metadata"]["labels"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == "http"

    objects = printed(make_app(), "--scraping", "annotations")
    assert "PodMonitor" not in [one["kind"] for one in objects]
    found = of(objects, "Deployment", "exporter")["spec"]["template"]["metadata"]["annotations"]
    assert found == {"prometheus.io/scrape": "true", "prometheus.io/port": "9808", "prometheus.io/path": "/metrics"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--namespace", "Prod"], "--namespace 'Prod'"),
        (["--min", "5", "--max", "3"], "the least is more than the most"),
        (["--min", "0", "--autoscaler", "hpa"], "--min 0 needs --autoscaler keda"),
        (["--queues", " , "], "--queues names no queue"),
        (["--queues", "a,b", "--queues", "a,c"], "begin with another queue"),
    ],
)
def test_what_cannot_be_is_refused(options: list[str], said: str) -> None:
    result = call(make_app(), "manifests", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_pure() -> None:
    """From a plan to text, without an app."""
    plan = Plan(name="shop", module="proj", image="i", namespace="n", groups=(("q",),), grace=60)
    assert manifests(plan) == manifests(plan)
    with pytest.raises(ConfigurationError):
        Plan(name="-", module="proj", image="i", namespace="n", groups=(("q",),), grace=60)
