"""An app whose spans go to the file ``spans`` in OUT, a line of JSON each; its text is run by workers and beats."""

import json
import os
import time
from pathlib import Path

from celery import Celery
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from celery_hardened import HardenedTask, harden
from celery_hardened.contrib.opentelemetry import instrument
from tests.support.notes import note

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_retry_backoff=0.1,
    hardened_retry_floor=0.05,
    hardened_payload_store=Path(os.environ["OUT"], "payloads").as_uri(),
    beat_schedule=eval(os.environ.get("SCHEDULES", "{}")),
)
harden(app)


class ToFile(SpanExporter):
    def __init__(self):
        self.made_in = os.getpid()

    def export(self, spans):
        for span in spans:  # each line is one write: processes that end together would write into each other's lines
            where = {"pid": os.getpid(), "made_in": self.made_in}
            note("spans", json.dumps({**where, **json.loads(span.to_json(None))}))
        return SpanExportResult.SUCCESS


def provider():
    made = TracerProvider()
    # So slow that only a flush sends anything.
    made.add_span_processor(BatchSpanProcessor(ToFile(), schedule_delay_millis=600_000))
    return made


if "UNTRACED" not in os.environ:
    instrument(app, provider)


@app.task(base=HardenedTask)
def fine(*args):
    return "fine"


@app.task(base=HardenedTask, bind=True, max_retries=3)
def flaky(self):
    if self.request.retries < 2:
        raise ConnectionError("not yet")
    return "at last"


@app.task(base=HardenedTask)
def broken():
    if not Path(os.environ["OUT"], "mended").exists():
        raise ValueError("broken")
    return "mended"


@app.task
def contained():
    time.sleep(0.01)
    return "contained"
