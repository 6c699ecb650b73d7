"""The overview in Django's admin: who sees it, what it costs, what it shows without servers, how it is marked up."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connections
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from redis import Redis

import celery_hardened.contrib.django as package
from celery_hardened import HardenedTask, Hardening, harden
from celery_hardened.attendance.record import WorkerRecord
from celery_hardened.attendance.store import Keys, WorkerStore, lost_text
from celery_hardened.beat.leader_store import LeaderStore
from celery_hardened.beat.names import Keys as BeatKeys
from celery_hardened.beat.record import Record
from celery_hardened.contrib.django.admin import DeadLetterAdmin, OverviewAdmin
from celery_hardened.contrib.django.overview import watch
from celery_hardened.contrib.django.overview.facts import Facts
from celery_hardened.contrib.django.overview.problems import Limits, Pauses, Problem, problems
from celery_hardened.contrib.django.overview.watch import watch_of
from celery_hardened.errors import StoreUnavailableError
from celery_hardened.metrics.rules.terms import Terms
from tests.stores.letters import letter
from tests.support import django_project, django_schedules
from tests.support.admin_visitors import ada, staff
from tests.support.client import client_side
from tests.support.tcp_proxy import TcpProxy

PAGE = "/admin/celery_hardened/overview/"
PART = f"{PAGE}part/"

#: What a stranger may have put into a name.
NASTY = "<script>alert('1')</script>\"&"

STATIC = Path(package.__file__).parent / "static" / "celery_hardened"


@pytest.fixture(autouse=True)
def site() -> Iterator[None]:
    """Empty tables, and the admin at ``/admin/``."""
    _clear()
    with override_settings(ROOT_URLCONF="tests.support.django_admin_urls"):
        yield
    _clear()


def _clear() -> None:
    django_project.empty("default", "celery_hardened")
    django_schedules.clear("default")
    for model in (User, Session):
        model.objects.all().delete()


@pytest.fixture
def shop(records_url: str, unique: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hardening]:
    """The admin's app, on a Redis; what it says of itself is read anew each time."""
    monkeypatch.setattr(watch, "FRESH", 0.0)
    with made(records_url, unique, monkeypatch) as found:
        be_patient(found)
        yield found


def be_patient(hardening: Hardening) -> None:
    """On a busy machine an answer that comes may take more than a second."""
    vars(hardening)["_overview"] = watch.Watch(watch_of(hardening).asks, patience=20.0)


class made:  # noqa: N801 - reads as a verb
    """An app that the admin shows, ended with the block."""

    def __init__(self, url: str, prefix: str, monkeypatch: pytest.MonkeyPatch, **conf: Any) -> None:
        self._client = client_side()
        self._client.__enter__()
        self.app = Celery("shop", broker=url, set_as_current=False)
        self.app.conf.update(task_default_queue="mail", hardened_key_prefix=prefix, **conf)
        harden(self.app)

        @self.app.task(base=HardenedTask, name="shop.send")  # type: ignore[untyped-decorator]
        def send() -> None: ...

        self.app.finalize()
        for one in (OverviewAdmin, DeadLetterAdmin):
            monkeypatch.setattr(one, "celery_app", self.app)

    def __enter__(self) -> Hardening:
        return Hardening.expect(self.app)

    def __exit__(self, *_: object) -> None:
        self.app.close()
        self._client.__exit__(None, None, None)


@pytest.fixture
def client() -> Client:
    return ada()


def text_of(response: Any, status: int = 200) -> str:
    assert response.status_code == status, response.content[:2000]
    return str(response.content.decode())


def found(hardening: Hardening, limits: Limits = Limits()) -> list[Problem]:  # noqa: B008 - it is frozen
    return list(problems(watch_of(hardening).look().facts, limits))


# --- what it shows --------------------------------------------------------------------------------------------------


def test_a_calm_system(client: Client, shop: Hardening) -> None:
    """Nothing waits, nobody works, nothing is scheduled: the page says so and has no problem."""
    text = text_of(client.get(PAGE))
    assert "None. Whatever is known is as it should be." in text
    assert "No worker of this package has told of itself" in text
    assert "No beat of this package has ever led." in text
    assert found(shop) == []


def test_all_there_is_to_see(client: Client, shop: Hardening) -> None:
    """Waiting and oldest of a queue, what workers hold of it, who leads, and dead letters by queue."""
    shop.app.tasks["shop.send"].delay()
    record = WorkerRecord(name="w1@host", pid=7, pool="prefork", concurrency=4, queues=("mail",), held={"mail": 3})
    WorkerStore(shop.redis, Keys(shop.prefix)).tell("one", record)
    leader = LeaderStore(shop.redis, BeatKeys(shop.prefix), ttl=30.0)
    leader.acquire("me", client="", identity={"host": "h1", "pid": 9})
    shop.dead_letters.put(letter(queue="mail"))
    page = Tables(text_of(client.get(PAGE)))
    assert page.row("overview-queues", "mail")[:5] == ["mail", "1", page.row("overview-queues", "mail")[2], "3", "1"]
    assert page.row("overview-queues", "mail")[-1].startswith("1")
    assert page.row("overview-workers", "w1@host (pid 7)")[1:5] == ["takes messages", "mail", "3", "prefork 4"]
    assert "h1 (pid 9) leads" in page.text
    assert page.row("overview-letters", "mail") == ["mail", "1", "1"]
    (growing,) = found(shop)
    assert growing.alert == "CeleryDeadLettersGrowing"
    assert growing.what in page.text


def test_each_problem_says_what_to_do(client: Client, shop: Hardening) -> None:
    """What it is, how much, the command in a ``code`` element, the alert's name, and a link to just those letters."""
    shop.dead_letters.put(letter(queue="mail"))
    text = text_of(client.get(PAGE))
    assert "Queue mail: more dead letters in 15m: 1" in text
    assert "<code>celery -A shop hardened dlq stats</code>" in text
    assert "CeleryDeadLettersGrowing" in text
    link = re.search(r'<a id="problem-1" href="([^"]+)">', text)
    assert link is not None
    assert "queue=mail" in link[1]
    assert client.get(link[1]).status_code == 200


def test_missed_runs(client: Client, shop: Hardening) -> None:
    """From the records and the histories that beats keep: how many in the last hour; older ones are no problem."""
    now = time.time()
    keys = BeatKeys(shop.prefix)
    leader = LeaderStore(shop.redis, keys, ttl=30.0)
    leader.acquire("me", client="", identity={"host": "h1", "pid": 9})
    django_schedules.every(name="report")
    for name, missed, ago in (("report", 3, 60.0), ("old", 4, 9000.0), ("caught up", 2, 30.0), ("fine", 0, 1.0)):
        passed = {"coalesced" if name == "caught up" else "expired": missed} if missed else {}
        record = {"v": 1, "cursor": now, "anchor": now, "mark": "m", **({"passed": passed} if passed else {})}
        shop.redis.hset(keys.records, name, json.dumps(record, separators=(",", ":")))
        line = {"at": now - ago, "outcome": "fired" if name == "caught up" else "expired"}
        line |= {"missed": missed} if name == "caught up" else {"count": missed}
        shop.redis.lpush(keys.history(name), json.dumps(line))
    said = [one.what for one in found(shop)]
    assert said == ["caught up: slots that were not fired (missed): 2", "report: slots that were not fired (missed): 3"]
    page = Tables(text_of(client.get(PAGE)))
    assert page.row("overview-beats", "report")[1] == "3"
    assert page.row("overview-beats", "old")[1] == "0"
    assert "9 missed runs" in page.text


def test_names_of_strangers_are_text(client: Client, shop: Hardening) -> None:
    """Whatever queues, workers, hosts and letters are called, the page has no element of theirs."""
    shop.app.conf.task_routes = {"a": {"queue": NASTY}}
    record = WorkerRecord(name=NASTY, pid=1, pool=NASTY, queues=(NASTY,), missing=(NASTY,), deaf=90.0, held={NASTY: 1})
    WorkerStore(shop.redis, Keys(shop.prefix)).tell("one", record)
    LeaderStore(shop.redis, BeatKeys(shop.prefix), ttl=30.0).acquire("me", client="", identity={"host": NASTY})
    shop.dead_letters.put(letter(queue=NASTY))
    for address in (PAGE, PART):
        text = text_of(client.get(address))
        assert "<script>alert" not in text
        assert text.count("&lt;script&gt;alert") > 5


def test_names_that_are_no_utf8(client: Client, shop: Hardening) -> None:
    """A worker's name off a command line, a host's, a queue's and a schedule's: the page shows them all the same."""
    odd = "w\udce9"
    record = WorkerRecord(name=odd, pid=1, pool=odd, queues=(odd,), missing=(odd,), deaf=90.0, held={odd: 1})
    WorkerStore(shop.redis, Keys(shop.prefix)).tell("one", record, [lost_text(queue=odd, worker=odd, task=odd)])
    keys = BeatKeys(shop.prefix)
    LeaderStore(shop.redis, keys, ttl=30.0).acquire("me", client="", identity={"host": odd})
    missed = Record(cursor=1.0, anchor=1.0, mark="m", passed={"expired": 3})
    shop.redis.hset(keys.records, b"s\xe9", missed.text())
    said = json.dumps({"at": time.time(), "outcome": "expired", "slot": 1.0, "count": 3})
    shop.redis.lpush(keys.history("").encode() + b"s\xe9", said)
    for address in (PAGE, PART):
        text = text_of(client.get(address))
        assert "w\\udce9" in text
        assert "s\\udce9" in text


# --- who sees it ----------------------------------------------------------------------------------------------------


def test_only_who_may(shop: Hardening) -> None:
    """Nobody is told anything without the permission; the admin's index leads there with it."""
    for address in (PAGE, PART):
        assert Client().get(address).status_code == 302
        assert staff("view_deadletter").get(address).status_code == 403
        assert staff("view_overview").get(address).status_code == 200
    assert PAGE in text_of(staff("view_overview").get("/admin/"))
    assert PAGE not in text_of(staff("view_deadletter").get("/admin/"))


def test_links_are_for_who_may_follow_them(shop: Hardening) -> None:
    """The numbers of dead letters need nothing more than the page; their list needs its own permission."""
    shop.dead_letters.put(letter(queue="mail"))
    without, both = staff("view_overview"), staff("view_overview", "view_deadletter", "view_periodictask")
    assert "Queue mail: more dead letters in 15m: 1" in text_of(without.get(PAGE))
    assert "/deadletter/" not in text_of(without.get(PAGE))
    assert "/periodictask/" not in text_of(without.get(PAGE))
    assert "/deadletter/list/?queue=mail" in text_of(both.get(PAGE))
    assert "/periodictask/" in text_of(both.get(PAGE))


def test_it_only_reads(client: Client, shop: Hardening) -> None:
    """No other method is answered, and Django's own forms of a model are not there."""
    for address in (PAGE, PART):
        assert client.post(address).status_code == 405
        assert client.delete(address).status_code == 405
    assert client.get(f"{PAGE}add/").status_code == 404
    assert client.head(PAGE).status_code == 200
    assert "no-store" in client.get(PART)["Cache-Control"]


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch, unique: str, client: Client) -> None:
    """A URL that an error quotes has lost its password."""
    monkeypatch.setattr(watch, "FRESH", 0.0)
    with made("redis://ann:hunter2@127.0.0.1:1/0", unique, monkeypatch) as shop:

        def refused(self: Any) -> Any:
            raise StoreUnavailableError("counting queues", "cannot reach redis://ann:hunter2@10.0.0.1:6379")

        monkeypatch.setattr("celery_hardened.contrib.django.overview.read.AskBroker.read", refused)
        text = text_of(client.get(PAGE))
        assert "hunter2" not in text
        assert "The broker does not answer" in text
        assert shop.settings is not None


# --- what it costs --------------------------------------------------------------------------------------------------


def test_queries_of_the_request_are_few_and_fixed(client: Client, shop: Hardening) -> None:
    """However many schedules there are: the session, the user, and nothing else in the request's own thread."""
    client.get(PAGE)
    counts = []
    for many in (0, 300):
        if many:
            django_schedules.many(many)
        with CaptureQueriesContext(connections["default"]) as seen:
            text_of(client.get(PAGE))
        counts.append(len(seen))
    assert counts[0] == counts[1] <= 3


def test_round_trips_are_few_and_fixed(client: Client, shop: Hardening) -> None:
    """Of Redis: one pipeline for the queues, one for workers and beats; however many there are."""
    spied = Spied(shop.redis)
    store = WorkerStore(shop.redis, Keys(shop.prefix))
    counts = []
    for number in (1, 60):
        for one in range(number):
            store.tell(f"t{one}", WorkerRecord(name=f"w{one}", queues=("mail",), began=9.0))
            shop.redis.hset(BeatKeys(shop.prefix).records, f"s{one}", '{"v":1,"cursor":1.0,"anchor":1.0,"mark":"m"}')
        client.get(PAGE)
        before = spied.reads()
        client.get(PAGE)
        counts.append(spied.reads() - before)
    assert counts[0] == counts[1] <= 50


class Spied:
    """Commands that a server has executed."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    def reads(self) -> int:
        stats = self._client.info("commandstats")
        return sum(int(one["calls"]) for name, one in stats.items() if not name.endswith(("info", "hello")))


def test_ten_pages_cost_one_reading(shop: Hardening, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of one process share what was read some seconds ago, also when they ask at the same moment."""
    monkeypatch.setattr(watch, "FRESH", 60.0)
    asked = Counting()
    one = watch.Watch([asked, Counting(), Counting(), Counting()], patience=20.0)
    threads = [threading.Thread(target=one.look) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one.look()
    assert asked.times == 1


class Counting:
    who = "somebody"

    def __init__(self, answer: Callable[[], Any] = lambda: None) -> None:
        self.times = 0
        self._answer = answer

    def read(self) -> Any:
        self.times += 1
        return self._answer()


# --- when servers are silent ----------------------------------------------------------------------------------------


def test_servers_that_are_down(client: Client, unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused connections are problems on the page, which is shown all the same."""
    monkeypatch.setattr(watch, "FRESH", 0.0)
    monkeypatch.setattr(watch, "PATIENCE", 20.0)
    with made("redis://127.0.0.1:1/0", unique, monkeypatch) as shop:
        be_patient(shop)
        page = Tables(text_of(client.get(PAGE)))
        for who in ("The broker", "Redis", "The store of dead letters"):
            assert f"{who} does not answer" in page.text
        assert "Unknown: the broker does not answer." in page.text
        assert "Unknown: Redis does not answer." in page.text


def test_a_process_that_may_have_no_more_threads(shop: Hardening, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can be asked: the page says so, and asks again when it is shown next."""
    one = watch.Watch([Counting(), Counting(), Counting(), Counting()], patience=20.0)

    def refused(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as less:
        less.setattr(threading.Thread, "start", refused)
        assert "can't start new thread" in one.look().facts.silent["somebody"].why
    assert not one.look().facts.silent


def test_a_server_that_hangs_costs_a_second(
    client: Client,
    records_url: str,
    unique: str,
    start_proxy: Callable[[int], TcpProxy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It accepts and never answers: the page comes after its patience, says so, and asks no second time meanwhile."""
    monkeypatch.setattr(watch, "FRESH", 0.0)
    port = re.search(r":(\d+)/", records_url)
    assert port is not None
    proxy = start_proxy(int(port[1]))
    proxy.silence()
    url = records_url.replace(f":{port[1]}/", f":{proxy.port}/")
    with made(url, unique, monkeypatch):
        began = time.monotonic()
        text = text_of(client.get(PAGE))
        text_of(client.get(PAGE))
        assert time.monotonic() - began < 20, "the time-outs of all who are asked are twice as long"
        assert "The broker does not answer: no answer within 1 s" in text, Tables(text).text
        alive = [one for one in threading.enumerate() if one.name == "hardened-overview"]
        assert len(alive) <= 3
        proxy.heal()
        proxy.reset()
        for one in alive:
            one.join(30)


def test_what_was_known_is_shown_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Last numbers stay while a server is away, with the problem; then they are not shown any more."""
    monkeypatch.setattr(watch, "FRESH", 0.0)
    answers: list[Any] = [7, StoreUnavailableError("asking", "away")]

    def answer() -> Any:
        one = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(one, Exception):
            raise one
        return one

    one = watch.Watch([Counting(), Counting(), Counting(), Counting(answer)], patience=20.0)
    assert one.look().facts == Facts(schedules=7)
    away = one.look().facts
    assert away.schedules == 7
    assert "away" in away.silent["somebody"].why
    monkeypatch.setattr(watch, "KEEP", -1.0)
    assert one.look().facts.schedules is None


def test_an_app_that_was_never_hardened(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, and is no error of the server."""
    monkeypatch.setattr(OverviewAdmin, "celery_app", Celery("bare", set_as_current=False))
    for address in (PAGE, PART):
        assert "was never hardened" in text_of(client.get(address), 503)


def test_an_app_without_redis(client: Client, unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queues are shown; that nothing is known of workers and beats is said, and is no problem."""
    monkeypatch.setattr(watch, "FRESH", 0.0)
    with made("memory://", unique, monkeypatch, hardened_dead_letter_store="memory") as shop:
        be_patient(shop)
        text = text_of(client.get(PAGE))
        assert "this app keeps nothing there" in text
        assert "each process keeps its own" in text
        assert found(shop) == []


def test_limits_are_the_sites_own(client: Client, shop: Hardening, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project that has its alerts at other thresholds gives the page the same ones."""
    shop.app.tasks["shop.send"].delay()
    assert "no worker takes from it" not in text_of(client.get(PAGE))
    monkeypatch.setattr(OverviewAdmin, "limits", Limits(terms=Terms(app="x"), pauses=Pauses(no_consumer=0.0)))
    assert "no worker takes from it" in text_of(client.get(PAGE))


# --- how it is marked up --------------------------------------------------------------------------------------------


class Tables(HTMLParser):
    """Rows of the tables in each section, the text of it all, and what an assistive technology would miss."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: dict[str, list[list[str]]] = {}
        self.ids: list[str] = []
        self.headings: list[int] = []
        self.bad: list[str] = []
        self.words: list[str] = []
        self._section = ""
        self.feed(html)
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = dict(attrs)
        if has.get("id"):
            self.ids.append(str(has["id"]))
        if tag == "section":
            self._section = str(has.get("id"))
            self.rows[self._section] = []
        if tag == "tr" and self._section:
            self.rows[self._section].append([])
        if tag in ("th", "td") and self._section:
            self.rows[self._section][-1].append("")
        if tag == "th" and not has.get("scope"):
            self.bad.append("th without scope")
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if "style" in has or any(name.startswith("on") for name in has) or tag == "style":
            self.bad.append(f"inline in {tag}")
        if tag == "script" and not has.get("src"):
            self.bad.append("inline script")

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())
        rows = self.rows.get(self._section)
        if rows and rows[-1] and data.strip():
            rows[-1][-1] = f"{rows[-1][-1]} {data.strip()}".strip()

    def row(self, section: str, name: str) -> list[str]:
        """The row that begins with *name*."""
        (row,) = [row for row in self.rows[section] if row and row[0] == name]
        return row


def test_markup(client: Client, shop: Hardening) -> None:
    """Headings in order, cells that say what they head, ids once, and nothing that a strict content policy refuses."""
    shop.app.tasks["shop.send"].delay()
    shop.dead_letters.put(letter(queue="mail"))
    WorkerStore(shop.redis, Keys(shop.prefix)).tell("one", WorkerRecord(name="w1@host", queues=("mail",)))
    text = text_of(client.get(PAGE))
    part = Tables(text[text.index('id="overview"') :])
    assert part.bad == []
    assert len(set(part.ids)) == len(part.ids)
    levels = [1, *part.headings]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert 'name="viewport"' in text
    assert "http" not in text[text.index('id="overview"') : text.index('id="overview-letters"')]
    # Tables scroll inside their own box, which the keyboard reaches.
    own = text[text.index('id="overview"') :]
    assert own.count('class="scroll"') == own.count("<table") == 3
    assert len(re.findall(r'class="scroll"[^>]* tabindex="0" role="region" aria-labelledby=', own)) == 3


def test_it_is_whole_without_javascript(client: Client, shop: Hardening) -> None:
    """The first answer has everything, the time of its reading and a link that reads again; the part is the same."""
    text, part = text_of(client.get(PAGE)), text_of(client.get(PART))
    assert re.search(r'<a href="" id="overview-refresh">Refresh</a>', text)
    assert re.search(r'<time datetime="[^"]+">[^<]+ UTC</time>', text)
    for section in ("problems", "queues", "workers", "beats", "letters"):
        for answer in (text, part):
            assert f'<section id="overview-{section}"' in answer
    assert "<html" not in part
    assert 'aria-live="polite"' in text
    assert "aria-live" not in part


def test_static_files_ask_nobody_else() -> None:
    """Neither file has an address of another host, and the style sheet has no colour of its own."""
    css, js = (STATIC / "overview.css").read_text(), (STATIC / "overview.js").read_text()
    assert "//" not in re.sub(r"/\*.*?\*/|// .*", "", css + js, flags=re.DOTALL)
    assert not re.search(r"#[0-9a-fA-F]{3,6}\b|rgb\(", css)
    assert "innerHTML" not in js
    assert "eval" not in js
