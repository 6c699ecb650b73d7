from django.db import transaction
from django.utils import timezone

from celery_hardened import HardenedTask, idempotent
from project.celery import app
from shop import gateway
from shop.models import Order

from .invoices import make_invoice


class PaymentTask(HardenedTask):
    """What asks the gateway: its faults pass by themselves, its refusals do not."""

    abstract = True
    autoretry_for = (gateway.GatewayError,)
    dont_autoretry_for = (gateway.CardDeclinedError,)
    # An outage ends in dead letters after some seconds, so that the tour can show them. The default
    # is ten retries, over a quarter of an hour; `retry_for = timedelta(hours=12)` bears a night.
    max_retries = 3
    soft_time_limit = 30  # longer than GATEWAY_TIMEOUT
    time_limit = 40
    queue = "payments"


@app.task(base=PaymentTask, bind=True, name="shop.charge", log_args=("order_id",))
@idempotent("order_id")  # below @app.task: one order is paid once, however often this is sent
def charge(self, order_id):
    order = Order.objects.get(pk=order_id)
    # The key is the same in every attempt. A process that dies between the gateway's charge and our note
    # of it is followed by one that asks again, and is given the receipt of the first time.
    receipt = gateway.charge(f"order-{order.pk}", order.cents, key=self.execution.key)
    with transaction.atomic():
        Order.objects.filter(pk=order_id).update(receipt=receipt, paid_at=timezone.now())
        make_invoice.delay(order_id)  # is sent after the commit
    return receipt
