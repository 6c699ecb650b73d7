"""The app of the tests of publish on commit: a Django project's tasks, in workers and in the test process."""

from __future__ import annotations

ON_COMMIT = '''
import os
from celery import Celery, chord, group

if "DJANGO_SETTINGS_MODULE" in os.environ:  # a worker: Celery's Django fixup is at work too
    import django
    django.setup()
else:
    from tests.support.django_project import configure
    configure()

from django.db import transaction
from celery_hardened import HardenedTask, deduplicate, harden
from tests.support.django_shop.models import Invoice
from tests.support.notes import note

USING = os.environ.get("USING", "default")

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    broker_connection_timeout=2,
    broker_transport_options={"socket_timeout": 2, "socket_connect_timeout": 2},
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_publish_timeout=float(os.environ.get("PUBLISH_TIMEOUT", "60")),
    hardened_retry_backoff=0.2,
    hardened_retry_floor=0.05,
)
harden(app)


class Shop(HardenedTask):
    abstract = True
    autoretry_for = (ConnectionError,)


def invoice(number):
    return Invoice.objects.using(USING).create(number=number).pk


@app.task(base=Shop, bind=True)
def look(self, pk):
    """Is the row there?"""
    found = Invoice.objects.using(USING).filter(pk=pk).exists()
    note("looks", self.request.id, found)
    return found


@app.task(base=Shop)
def count(answers):
    note("counts", len(answers), all(answers))
    return len(answers)


@app.task(base=Shop, bind=True)
def bill(self, number, failures=0):
    """Fails inside its transaction, after it has published."""
    with transaction.atomic(using=USING):
        result = look.delay(invoice(number))
        note("published", result.id)
        if self.request.retries < failures:
            raise ConnectionError("gateway down")
    note("billed", number, result.id)


@app.task(base=Shop, bind=True)
def retries_inside(self, number):
    with transaction.atomic(using=USING):
        result = look.delay(invoice(number))
        if self.request.retries < 2:
            raise self.retry(exc=ConnectionError("gateway down"), countdown=0.1)
    note("billed", number, result.id)


@app.task(base=Shop, bind=True)
def replaces_inside(self, number):
    with transaction.atomic(using=USING):
        dropped = look.delay(invoice(number))
        note("dropped", dropped.id)
        raise self.replace(count.si([True, True, True]))


@app.task(base=Shop)
def total(number):
    """A chord from inside a transaction."""
    with transaction.atomic(using=USING):
        chord([look.si(invoice(f"{number}-{n}")) for n in range(3)], count.s()).apply_async()


@app.task(base=Shop)
@deduplicate("pk", until="finish")
def once(pk):
    note("once", pk)


@app.task(base=Shop)
@deduplicate("pk", until="finish", on_duplicate="raise")
def strictly_once(pk):
    note("strictly_once", pk)
'''
