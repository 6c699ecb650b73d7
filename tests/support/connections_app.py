"""The app of the tests of database connections: tasks that use Django's database in every way they can."""

from __future__ import annotations

CONNECTIONS = '''
import os
import time
from pathlib import Path
from celery import Celery

if "DJANGO_SETTINGS_MODULE" in os.environ:  # a worker: Celery's Django fixup is at work too
    import django
    django.setup()
else:
    from tests.support.django_project import configure
    configure()

from django.db import connections, transaction
from celery_hardened import HardenedTask, harden
from tests.support.django_shop.models import Invoice
from tests.support.notes import note

USING = "postgres"
if "KEPT" in os.environ:  # as CONN_MAX_AGE = None
    connections.settings[USING]["CONN_MAX_AGE"] = None

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_dead_letter_store=f"django:{USING}",
    hardened_dead_letter_write_timeout=60,
    hardened_retry_backoff=0.2,
    hardened_retry_floor=0.05,
)
harden(app)


def session():
    """The server process that answers this thread."""
    with connections[USING].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]


@app.task(base=HardenedTask)
def row(number):
    return Invoice.objects.using(USING).create(number=number).pk


@app.task(base=HardenedTask)
def broken(number):
    Invoice.objects.using(USING).create(number=number)
    raise ValueError(number)


@app.task(base=HardenedTask)
def bare(number):
    """Fails without having looked at the database."""
    raise ValueError(number)


@app.task(base=HardenedTask)
def cut(number, go, then):
    """Has a connection that the server ends; *then* is what it does after that."""
    note("sessions", session())
    while not Path(go).exists():
        time.sleep(0.05)
    if then == "look":
        Invoice.objects.using(USING).create(number=number)
    else:
        raise ValueError(number)


@app.task(base=HardenedTask)
def inside(number):
    """Whatever runs inside of a transaction of the caller leaves the connection as it is."""
    with transaction.atomic(using=USING):
        before = session()
        Invoice.objects.using(USING).create(number=number)
        assert row.apply((number + "-eager",)).successful()
        assert broken.apply((number + "-broken",)).failed()
        row.delay(number + "-after")
        assert connections[USING].in_atomic_block
        assert session() == before
    # The task that was published by the commit may have run by now, in another process.
    there = Invoice.objects.using(USING).filter(number__startswith=number)
    return there.exclude(number=number + "-after").count()
'''
