import os
import signal
import time
from pathlib import Path

from celery import Celery, current_task
from kombu.message import Message

from celery_hardened import ClaimLostError, HardenedTask, harden
from celery_hardened.idempotency.decorator import idempotent
from celery_hardened.idempotency.store import RedisClaimStore
from tests.support.notes import note

OUT = Path(os.environ["OUT"])

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_lease=5.0,
    hardened_death_delay=0.2,
    hardened_retry_backoff=0.2,
)
harden(app)


def die(order, here):
    """Kill, once in a test, the pool process or the whole worker of the order that is named after this point."""
    if order != here:
        return
    try:
        os.close(os.open(OUT / f"killed {here}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if os.environ["VICTIM"] == "worker":
        os.killpg(os.getpgid(0), signal.SIGKILL)
    # The parent acks; the child that is killed then is the one that ran it.
    os.kill(int((OUT / f"pid of {order}").read_text()) if here.endswith("ack") else os.getpid(), signal.SIGKILL)


def around(cls, name, what, order_of):
    """Two points: before and after the method *name*."""
    inner = getattr(cls, name)

    def method(self, *args, **kwargs):
        order = order_of(self)
        die(order, f"before {what}")
        answer = inner(self, *args, **kwargs)
        die(order, f"after {what}")
        return answer

    setattr(cls, name, method)


def order_of_current(store):
    request = current_task.request if current_task else None
    return request.args[0] if request and request.args else None


def order_of_message(message):
    if (message.headers or {}).get("task") != "proj.charge":
        return None
    return message.decode()[0][0]


around(RedisClaimStore, "claim", "claim", order_of_current)
around(RedisClaimStore, "finish", "finish", order_of_current)
around(Message, "ack", "ack", order_of_message)


@app.task(bind=True, base=HardenedTask)
@idempotent("order")
def charge(self, order):
    (OUT / f"pid of {order}").write_text(str(os.getpid()))
    note("starts", order, self.request.id, self.execution.fence)
    die(order, "before effect")
    note("effects", order)
    die(order, "after effect")
    return f"charged {order}"


@app.task(bind=True, base=HardenedTask)
@idempotent("order", compare_arguments=False)
def settle(self, order, checked):
    note("starts", order, os.getpid(), self.execution.fence)
    while not (OUT / "go").exists():
        time.sleep(0.02)
    note("awake", os.getpid())
    if checked:
        try:
            self.execution.check()
        except ClaimLostError as error:
            note("refused", os.getpid(), error)
            raise
    note("effects", order, os.getpid())
    return os.getpid()
