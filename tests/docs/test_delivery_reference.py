"""Pages on Redis delivery are ``celery_hardened/transport``: keys, tags, the mark, the numbers of seconds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args, get_type_hints

from kombu.transport.redis import Channel

from celery_hardened.pipeline import reconnect
from celery_hardened.pipeline.execution import Execution
from celery_hardened.settings import Settings
from celery_hardened.transport import channel, delay, fetcher, keeper, policy, scripts, watch
from celery_hardened.transport.names import DELAYED, LEASED, MARK, Keys, tag
from tests.support.pages import codes, table, text_of

KEYS = "reference/redis-keys.md"
PAGE = text_of("explanation/delivery.md")
LUA = Path(fetcher.__file__).parent


def test_every_key_of_delivery_is_on_the_page() -> None:
    """All names that ``Keys`` gives, and no other."""
    of = Keys("unacked", "unacked_index", "<prefix>")
    ours = {getattr(of, name) for name, value in vars(Keys).items() if isinstance(value, property)}
    ours.add(of.own_list("<consumer>", "<list>"))
    assert {codes(row[0])[0] for row in table(KEYS, "Delivery")} == ours


def test_what_ends_by_itself_says_when() -> None:
    """The one key with a time to live has that of the script; a consumer that left is forgotten after an hour."""
    lives = {codes(row[0])[0]: row[3] for row in table(KEYS, "Delivery")}
    assert [name for name, said in lives.items() if said == "TTL: a day"] == ["<prefix>:delivery:sweep"]
    assert "'EXPIRE', KEYS[5], 86400" in (LUA / "sweep.lua").read_text()
    assert sum(path.read_text().count("'EXPIRE'") for path in LUA.glob("*.lua")) == 1
    assert "until an hour after" in lives["<prefix>:delivery:fetching"]
    assert keeper.KEEP == 3600


def test_fields_of_the_sweep_are_those_of_the_script() -> None:
    """All it writes into its note."""
    said = next(row[2] for row in table(KEYS, "Delivery") if codes(row[0]) == ["<prefix>:delivery:sweep"])
    written = re.search(r"'HSET', KEYS\[5\],(.*)\)", (LUA / "sweep.lua").read_text())
    assert written is not None
    assert set(codes(said)) == set(re.findall(r"'(\w+)'", written[1]))


def test_tags_and_mark_are_those_of_the_pages() -> None:
    """As a reader finds them in Redis."""
    for page in (PAGE, text_of(KEYS)):
        assert f"`{LEASED}<consumer>:<number>`" in page
        assert f"`{DELAYED}<consumer>:<number>`" in page
    assert f'"{tag("0376342ffd954eb0", 387)}"' in text_of("how-to/move-to-hardened-delivery.md")
    for page in (PAGE, text_of("reference/envelope.md")):
        assert f'"{MARK}": {{"redelivered": true}}' in page
    assert f'"{MARK}": {{"redelivered": true}}' in (LUA / "entries.lua").read_text()


def test_numbers_are_those_of_the_code() -> None:
    """Seconds and counts that the page names."""
    assert Settings().lease == 30
    assert "free after thirty (`hardened_lease`)" in PAGE
    assert policy.RENEWALS == 3
    assert "every third of a lease" in PAGE
    assert policy.WEDGED_LEASES == 3
    assert "stood still for three leases" in PAGE
    assert (policy.STALLED, policy.GIVE_UP, watch.GAVE_UP) == (10, 60, 75)
    assert "for ten seconds, although" in PAGE
    assert "another minute, it ends with exit code 75" in PAGE
    assert "exit code 75" in text_of("reference/errors.md")
    assert (keeper.PAUSE, keeper.GRACE) == (3, 5)
    assert "nobody has swept for three seconds" in PAGE
    assert min(30, max(keeper.GRACE, 30 / policy.RENEWALS + 2 * keeper.SWEEP_EVERY)) == 12
    assert "a third of a lease and two seconds, but five seconds at least, and one lease at most" in PAGE
    for page in (PAGE, text_of("explanation/guarantees.md"), text_of("explanation/failure-modes.md")):
        assert "twelve seconds by default" in page
    assert keeper.SWEEP_EVERY == 1
    assert keeper.MALFORMED_EVERY == 30
    assert delay.THRESHOLD == 1


def test_waits_are_those_of_the_code() -> None:
    """How many, how long, and when a connection counts as dead."""
    assert (channel.WAITING, channel.RESERVED) == (8, 2)
    assert "up to eight" in PAGE
    assert Channel.max_connections == channel.WAITING + channel.RESERVED == 10
    assert "`max_connections` (10)" in PAGE
    assert "`max_connections` less two waits" in PAGE
    assert len(Channel.priority_steps) == 4
    assert "a list for each priority step: four" in PAGE
    waits = [row[2] for row in table("explanation/delivery.md", "Fetch and wait")]
    assert [float(said.split()[0]) for said in waits] == [fetcher.WAIT, fetcher.WAIT_ASIDE]
    assert fetcher.POLL <= 0.1, "a server looks for the end of waits ten times a second"
    assert "about ten times a second" in PAGE
    assert fetcher.OVERDUE == 3
    assert "three seconds late" in PAGE
    assert reconnect.LONGEST_WAIT == 3
    assert "at most three seconds between two tries" in PAGE
    assert scripts.DOWN == 1
    assert "fails at once for a second" in PAGE
    assert keeper.BLOCKED == 1
    assert "stood still for more than a second" in PAGE
    assert "pauses <= 3" in (LUA / "sweep.lua").read_text()
    assert "three times in a row at most" in PAGE
    assert f"{keeper.PAGE} entries at a time" in PAGE
    assert f"for {keeper.SWEEP_LONGEST} s at most" in PAGE
    assert "#KEYS > 13" in (LUA / "fetch.lua").read_text(), "five keys, and more than eight lists"
    assert "Of more than eight lists" in PAGE


def test_a_running_task_can_ask_what_the_page_says() -> None:
    """Each public property and method of ``self.execution`` is a row."""
    listed = {codes(row[0])[0] for row in table("reference/tasks.md", "What a running task can ask")}
    assert listed == {name for name in vars(Execution) if not name.startswith("_")}
    assert get_args(get_type_hints(Settings)["redis_delivery"]) == ("hardened", "stock")
