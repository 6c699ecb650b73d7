from celery_hardened import HardenedTask, idempotent
from project.celery import app
from shop.models import Invoice


@app.task(base=HardenedTask, name="shop.make_invoice", log_args=("order_id",))
@idempotent("order_id", store="database")  # the mark that it is done and the invoice are one commit
def make_invoice(order_id):
    return Invoice.objects.create(order_id=order_id).pk
