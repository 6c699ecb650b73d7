import csv
import io
import time

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from celery_hardened import HardenedTask
from project.celery import app
from shop.models import Import, Product

#: Seconds that a row takes. Somebody should have the time to pull the plug.
PACE = 0.05


# It may run for hours: its limits are off, and it goes on where it was, whatever ends its process.
@app.task(
    base=HardenedTask,
    bind=True,
    name="shop.import_products",
    queue="heavy",
    soft_time_limit=0,
    time_limit=0,
    log_args=("import_id",),
)
def import_products(self, import_id):
    upload = Import.objects.get(pk=import_id)
    rows = list(enumerate(csv.DictReader(io.StringIO(upload.text)), start=1))
    first = None
    for number, row in self.checkpoint.iterate(rows, every=1.0):
        if first is None:
            first = upload.starts.create(row=number)
        # A row that a killed process had done since its last save comes again, and must bear it.
        with transaction.atomic():
            Product.objects.update_or_create(sku=row["sku"], defaults={"name": row["name"], "cents": int(row["cents"])})
            Import.objects.filter(pk=import_id).update(handled=F("handled") + 1)
        time.sleep(PACE)
    Import.objects.filter(pk=import_id).update(done_at=timezone.now())
    return len(rows)
