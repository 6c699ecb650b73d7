"""An app whose tasks get what nobody else may see; its text is run by workers."""

import logging
import os
import sys
from pathlib import Path

from celery import Celery
from celery.signals import setup_logging

from celery_hardened import HardenedTask, JsonFormatter, deduplicate, harden, idempotent

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    task_send_sent_event=True,
    worker_send_task_events=True,
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_retry_backoff=0.1,
    hardened_retry_floor=0.05,
    hardened_payload_store=Path(os.environ["OUT"], "payloads").as_uri(),
)
harden(app)

if "JSON_LOGS" in os.environ:

    @setup_logging.connect
    def print_json(loglevel=logging.INFO, **_):
        lines = logging.StreamHandler(sys.stderr)
        lines.setFormatter(JsonFormatter())
        logging.basicConfig(level=loglevel, handlers=[lines], force=True)


@app.task(base=HardenedTask, log_args=("name",))
def fine(name, card, note=""):
    return card


@app.task(base=HardenedTask, bind=True, max_retries=2)
def flaky(self, name, card, note=""):
    if self.request.retries < 2:
        raise ConnectionError("not yet")


@app.task(base=HardenedTask)
def broken(name, card, note=""):
    raise ValueError("broken")


@app.task(base=HardenedTask)
@idempotent("card")
def once(name, card, note=""):
    return name


@app.task(base=HardenedTask)
@deduplicate("card")
def single(name, card, note=""):
    return name
