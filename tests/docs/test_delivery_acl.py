"""The permissions that ``docs/how-to/move-to-hardened-delivery.md`` gives a worker's user are what a worker uses."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis import Redis

from celery_hardened.transport import scripts
from tests.fixtures.processes import LoadProject, RunCelery, StartWorker
from tests.support.broker import Broker
from tests.support.letters import letter_of
from tests.support.notes import notes
from tests.support.pages import text_of
from tests.support.redis_server import RedisServer
from tests.support.shop import SHOP
from tests.support.until import until

PAGE = text_of("how-to/move-to-hardened-delivery.md")
LUA = Path(scripts.__file__).parent


def rule() -> list[str]:
    """What the page's ``ACL SETUSER`` says of the user, less its name and password."""
    line = next(line for line in PAGE.splitlines() if line.startswith("$ redis-cli ACL SETUSER"))
    words = shlex.split(line)
    assert words[4:7] == ["worker", "on", ">secret"]
    return words[7:]


def test_commands_of_scripts_are_listed() -> None:
    """Each command that a script of delivery calls stands in the list for those who allow one by one."""
    said = set(
        re.findall(r"`([A-Z]+)(?: [A-Z]+)?`", PAGE.partition("If you list commands")[2].partition("If you list")[0])
    )
    called = set()
    for path in LUA.glob("*.lua"):
        called |= set(re.findall(r"redis\.p?call\((?:last and )?'([A-Z]+)'(?: or '[A-Z]+')?", path.read_text()))
    assert {"HGET", "LMOVE", "LPUSH", "ZADD"} <= called
    assert called <= said


@pytest.mark.integration
@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("broker", ["redis", "redis7"], indirect=True)
def test_a_worker_needs_no_more(
    start_worker: StartWorker,
    load_project: LoadProject,
    run_celery: RunCelery,
    broker: Broker,
    unique: str,
    out: Path,
) -> None:
    """
    As a user with these permissions and no others, a worker runs what succeeds, fails, is retried and
    is delayed, answers ``inspect``, and takes over from one that was killed; the server refused nothing.
    """
    assert isinstance(broker.server, RedisServer)
    user = f"w-{unique}"
    admin = Redis.from_url(broker.url, decode_responses=True)
    admin.execute_command("ACL", "SETUSER", user, "on", ">secret", *rule())  # type: ignore[no-untyped-call]

    def as_user(url: str) -> str:
        return urlsplit(url)._replace(netloc=f"{user}:secret@127.0.0.1:{broker.port}").geturl()

    env = {
        "BROKER_URL": as_user(broker.url),
        "RECORDS_URL": as_user(broker.server.database()),
        "RESULT_URL": as_user(broker.server.database()),
        "CONF": "{'hardened_lease': 2.0}",
    }
    killed = start_worker(SHOP, concurrency=1, env=env)
    project = load_project(SHOP, env)
    assert project.fine.delay("now").get(timeout=60) == "now"
    assert project.flaky.delay("again").get(timeout=60) == "again"
    assert project.fine.apply_async(("later",), countdown=2).get(timeout=60) == "later"
    letter_of(project, project.broken.delay("never").id)
    assert project.app.control.inspect(timeout=10).ping()
    taken = project.slow.delay("taken", 3.0)
    until(lambda: any("taken" in line for line in notes(out, "starts")), within=60, what="a task to run")
    killed.kill_group()
    start_worker(SHOP, concurrency=1, env=env)
    assert taken.get(timeout=60) == "taken"
    assert run_celery(SHOP, "hardened", "recover", "--dry-run", env=env).returncode == 0

    refused = [
        entry
        for found in admin.execute_command("ACL", "LOG", "1000")  # type: ignore[no-untyped-call]
        if (entry := found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True)))
        and entry["username"] == user
    ]
    assert [entry["object"] for entry in refused] == []
    admin.execute_command("ACL", "DELUSER", user)  # type: ignore[no-untyped-call]
