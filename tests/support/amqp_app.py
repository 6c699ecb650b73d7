"""The app module of the AMQP tests: quorum queues and the drain, nothing else of the package."""

from __future__ import annotations

SOURCE = """
import logging, os, time
from celery import Celery, Task
from celery.exceptions import Reject
from kombu import Exchange, Queue
from redis import Redis
from celery_hardened.dead_letter.amqp_install import use_quorum_queues
from celery_hardened.dead_letter.contract import Retention
from celery_hardened.dead_letter.drain import DrainInto, drain_step
from celery_hardened.dead_letter.store import RedisDeadLetterStore
from celery_hardened.redis_connection import connect
from celery_hardened.settings import Settings
from tests.support.notes import note

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.task_default_queue = os.environ["QUEUE"]
app.conf.worker_prefetch_multiplier = 1
app.conf.broker_transport_options = {"confirm_publish": True}
# 28 of them are made in every test's own virtual host.
app.conf.broker_native_delayed_delivery_queue_type = "classic"

settings = Settings(amqp_queues="quorum", redis_url=os.environ["RECORDS_URL"])
if os.environ.get("STOCK") != "1":
    use_quorum_queues(app, settings)

store = RedisDeadLetterStore(
    connect(app, settings),
    prefix=os.environ["KEY_PREFIX"],
    retention=Retention(
        max_age=3600, max_count=1000, max_count_per_task=1000, max_bytes=10**7, closed_max_age=3600
    ),
)
app.steps["consumer"].add(drain_step(DrainInto(
    store=lambda: store,
    recorded_deaths=lambda letter: int(os.environ.get("DEATHS", "0")),
    version=lambda: "v1",
)))

@app.task
def add(x, y):
    note("runs", x, y)
    return x + y

@app.task(acks_late=True)
def refuse():
    raise Reject("no", requeue=False)

@app.task(bind=True, acks_late=True)
def hot_potato(self):
    note("runs", self.request.id)
    if os.environ.get("REQUEUE") == "1":
        raise Reject("not here", requeue=True)
    return "eaten"

@app.task(bind=True, acks_late=True)
def once_more(self, wait):
    note("runs", self.request.retries)
    if self.request.retries == 0:
        raise self.retry(countdown=wait)
    return self.request.delivery_info["routing_key"]
"""
