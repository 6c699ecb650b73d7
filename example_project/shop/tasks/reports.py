from datetime import timedelta

from django.db.models import Count, Q, Sum
from django.utils import timezone

from celery_hardened import HardenedTask
from project.celery import app
from shop import gateway
from shop.models import Comparison, Order, Report


@app.task(base=HardenedTask, bind=True, name="shop.nightly_report")
def nightly_report(self):
    """Yesterday's sales. Of the slot it is for, however late it runs; run by hand, of the day before today."""
    due = self.execution.slot or timezone.now()
    day = (due - timedelta(days=1)).date()
    sold = Order.objects.filter(placed_at__date=day).aggregate(
        orders=Count("pk"),
        paid=Count("pk", filter=~Q(receipt="")),
        cents=Sum("cents", filter=~Q(receipt=""), default=0),
    )
    Report.objects.update_or_create(day=day, defaults=sold)
    return f"{day}: {sold['paid']} of {sold['orders']} paid"


@app.task(base=HardenedTask, bind=True, name="shop.compare_with_gateway", autoretry_for=(gateway.GatewayError,))
def compare_with_gateway(self):
    """Whether the gateway has charged what we say is paid, and nothing twice."""
    theirs = gateway.ledger(most=0)
    Comparison.objects.create(
        slot=self.execution.slot or timezone.now(),
        missed=self.execution.missed,
        paid=Order.objects.exclude(receipt="").count(),
        charged=theirs["charges"],
        charged_twice=theirs["charged_twice"],
    )
    Comparison.objects.filter(at__lt=timezone.now() - timedelta(hours=1)).delete()
