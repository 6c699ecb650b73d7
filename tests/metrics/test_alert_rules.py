"""The alerts are right: by Prometheus' own tools, each where it fires and where it must not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from celery_hardened.metrics.packaged import packaged
from celery_hardened.metrics.rules.file import alerts_file
from celery_hardened.metrics.rules.terms import Terms, Thresholds
from tests.fixtures.servers import missing

HERE = Path(__file__).parent
CASES = HERE / "alerts_test.yml"

#: All rules there are: those that only an app with queues and schedules gets are among them.
ALL = Terms(queues=("celery", 'or"ders'), beat=True)


def promtool(*words: str, cwd: Path) -> str:
    """Run it; what it says."""
    if shutil.which("promtool") is None:
        missing("promtool")
    done = subprocess.run(["promtool", *words], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules_in(text: str) -> dict[str, Any]:
    return {rule["alert"]: rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]}


def test_unit_tests_of_the_rules(tmp_path: Path) -> None:
    """Each rule fires on the series that it is about, with its labels, value and words, and on no others."""
    found = yaml.safe_load(alerts_file(ALL))
    for group in found["groups"]:
        for rule in group["rules"]:
            rule["annotations"] = {"summary": rule["annotations"]["summary"]}
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(found, allow_unicode=True))
    shutil.copy(CASES, tmp_path)

    promtool("test", "rules", CASES.name, cwd=tmp_path)


def test_every_rule_has_tests_both_ways() -> None:
    """No rule is there whose firing and whose silence was not seen."""
    fires, silent = set(), set()
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for test in case["alert_rule_test"]:
            (fires if test["exp_alerts"] else silent).add(test["alertname"])

    assert fires == silent == set(rules_in(alerts_file(ALL)))


@pytest.mark.parametrize(
    "terms",
    [
        Terms(),
        ALL,
        Terms(
            Thresholds(oldest_age=1.5, failure_ratio=1e-7),
            app='we"ird\\app',
            queues=("a\\b", "é"),
            beat=True,
            broker="rabbitmq",
            selector='namespace="prod",job=~"w.*"',
            by=("cluster", "env"),
            scale=0.01,
        ),
        Terms(app="proj", beat=False, broker="redis", by=()),
    ],
    ids=["packaged", "all", "odd", "little"],
)
def test_what_is_rendered_is_valid(terms: Terms, tmp_path: Path) -> None:
    """Whatever is filled in, Prometheus reads it, and every rule says how bad it is and what to do."""
    (tmp_path / "alerts.yml").write_text(alerts_file(terms))

    assert "SUCCESS" in promtool("check", "rules", "alerts.yml", cwd=tmp_path)
    for name, rule in rules_in(alerts_file(terms)).items():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].get("runbook_url", f"#{name.lower()}").endswith(f"#{name.lower()}")
        assert rule["annotations"]["summary"]
        assert len(rule["annotations"]["description"]) > 60


def test_what_is_filled_in_is_there() -> None:
    """Thresholds, matchers, labels and the app's name reach every rule they concern."""
    terms = Terms(Thresholds(oldest_age=42), app="shop", selector='env="x"', by=("cluster",), scale=0.1)
    rules = rules_in(alerts_file(terms))

    assert rules["CeleryQueueOldestMessage"]["expr"].strip() == (
        'max by (cluster, queue) (celery_hardened_queue_oldest_age_seconds{env="x"}) > 42'
    )
    assert rules["CeleryQueueOldestMessage"]["for"] == "12s"
    for rule in rules.values():
        assert rule["labels"]["app"] == "shop"
        assert "-A proj" not in rule["annotations"]["description"]
        for line in rule["expr"].splitlines():
            assert line.count("celery_hardened_") + line.count("__name__") <= line.count('env="x"')


def test_groups_are_left_out_that_the_app_has_no_use_for() -> None:
    """An app without schedules is not told that no beat runs, one on Redis nothing of RabbitMQ."""
    names = set(rules_in(alerts_file(Terms(beat=False, broker="redis"))))

    assert names
    assert [name for name in names if "Beat" in name or "Rabbit" in name] == []


@pytest.mark.parametrize("selector", ["namespace=prod", 'a="b" or up', 'a="b"}', 'a="b', "{}"])
def test_what_is_no_selector_is_refused(selector: str) -> None:
    """Matchers are checked: they are put into every expression."""
    with pytest.raises(ValueError, match="no list of matchers"):
        Terms(selector=selector)


@pytest.mark.parametrize("selector", ["", 'a="b"', ' a="b", c!~"d|e" ,', 'a="with \\"quotes\\""'])
def test_what_is_a_selector_is_taken(selector: str, tmp_path: Path) -> None:
    """As PromQL writes them, a comma at the end included."""
    (tmp_path / "alerts.yml").write_text(alerts_file(Terms(selector=selector)))

    promtool("check", "rules", "alerts.yml", cwd=tmp_path)


@pytest.mark.parametrize(("path", "text"), list(packaged()), ids=lambda value: getattr(value, "name", ""))
def test_packaged_files_are_up_to_date(path: Path, text: str) -> None:
    """What comes with the package is what the code says: ``python -m celery_hardened.metrics.packaged`` writes it."""
    assert path.read_text() == text
