"""Counts of a web process, in prometheus-client's own registry: each test in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Two apps of one process, on an in-memory broker.
APPS = """
from celery import Celery
from celery_hardened import Hardening, HardenedTask, harden

def make(name, **conf):
    app = Celery(name, broker="memory://", set_as_current=False)
    app.conf.update({"task_default_queue": "q", "hardened_dead_letter_store": "memory", **conf})
    harden(app)
    return app

def shown(name):
    from prometheus_client import REGISTRY
    return {
        tuple(sample.labels.values()): sample.value
        for family in REGISTRY.collect() for sample in family.samples if sample.name == "celery_hardened_" + name
    }
"""


def run(source: str, **env: str) -> str:
    """What a process prints that runs *source*; its log goes to stderr, which is printed if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", APPS + source],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_two_apps_of_one_process_count_together() -> None:
    """The metrics are made once for the process, also when the module is loaded anew."""
    run("""
import importlib
import celery_hardened.metrics.client_sink as module
one, two = make("one"), make("two")
one.send_task("a"); two.send_task("a"); two.send_task("b")
importlib.reload(module)
Hardening.expect(two).metrics._client = module.ClientSink()
two.send_task("b")
found = shown("published_total")
assert found == {("a", "q", "published"): 2, ("b", "q", "published"): 2}, found
assert shown("publish_duration_seconds_count") == {("published",): 4}
""")


def test_labels_are_capped_for_the_process() -> None:
    """``hardened_metrics_max_tasks`` holds for both apps together; what is beyond is ``other``, and counted."""
    run("""
one, two = make("one", hardened_metrics_max_tasks=2), make("two", hardened_metrics_max_tasks=2)
for number in range(5):
    one.send_task(f"one-{number}")
    two.send_task(f"two-{number}")
found = shown("published_total")
assert found == {("one-0", "q", "published"): 1, ("two-0", "q", "published"): 1, ("other", "q", "published"): 8}, found
assert shown("labels_folded_total") == {("task",): 8}
""")


def test_a_name_that_is_taken_is_left_alone() -> None:
    """Somebody else's metric of that name stays; publishes go on; it is said once."""
    out = run("""
from prometheus_client import Counter
theirs = Counter("celery_hardened_published", "not ours", ["kind"])
theirs.labels("x").inc()
app = make("one")
for _ in range(3):
    assert app.send_task("a").id
assert shown("published_total") == {("x",): 1}
assert shown("publish_duration_seconds_count") == {("published",): 3}
""")
    assert out.count("is not counted in this process") == 1


def test_a_directory_that_is_gone_fails_no_publish(tmp_path: Path) -> None:
    """Multiprocess mode without its directory: publishes go on; it is said once."""
    out = run(
        """
app = make("one")
for _ in range(3):
    assert app.send_task("a").id
""",
        PROMETHEUS_MULTIPROC_DIR=str(tmp_path / "gone"),
    )
    assert out.count("not counted as they should") == 1


def test_two_forked_processes_in_multiprocess_mode(tmp_path: Path) -> None:
    """As under gunicorn with a preloaded app that has published: what each process published adds up, nothing twice."""
    run(
        """
import os
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
app = make("one")
app.send_task("a")
for _ in range(2):
    pid = os.fork()
    if not pid:
        for _ in range(10):
            app.send_task("a")
        app.send_task(f"b")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
registry = CollectorRegistry()
MultiProcessCollector(registry)
found = {
    (sample.labels["task"], sample.labels["queue"], sample.labels["result"]): sample.value
    for family in registry.collect() for sample in family.samples if sample.name == "celery_hardened_published_total"
}
assert found == {("a", "q", "published"): 21, ("b", "q", "published"): 2}, found
""",
        PROMETHEUS_MULTIPROC_DIR=str(tmp_path),
    )


def test_a_fork_while_another_thread_counts_for_the_first_time() -> None:
    """The lock that a thread held at the fork is not waited for in the child, which has no such thread."""
    run("""
import os, threading
import celery_hardened.metrics.client_sink as module
app = make("one")
held = threading.Event()
def hold():
    with module._making:
        held.set()
        threading.Event().wait(20)
threading.Thread(target=hold, daemon=True).start()
held.wait(20)
pid = os.fork()
if not pid:
    app.send_task("a")
    os._exit(0 if shown("published_total") == {("a", "q", "published"): 1} else 1)
assert os.waitpid(pid, 0)[1] == 0
""")


@pytest.mark.parametrize("on", [True, False])
def test_prometheus_client_is_imported_when_it_is_needed(on: bool) -> None:
    """Not by making an app; and never with ``hardened_metrics = False``."""
    run(f"""
import sys
app = make("one", hardened_metrics={on})
assert "prometheus_client" not in sys.modules
app.send_task("a")
assert ("prometheus_client" in sys.modules) is {on}
""")
