from django.contrib import messages
from django.db import transaction
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from shop.models import Import, Product
from shop.tasks import import_products

#: Rows of the sample: some fifteen seconds of work.
ROWS = 300


@require_safe
def page(request):
    imports = Import.objects.defer("text").prefetch_related("starts").order_by("-pk")[:10]
    return render(request, "shop/imports.html", {"imports": imports, "rows": ROWS, "products": Product.objects.count()})


@require_POST
def start(request):
    """Of the file that was sent, or of a sample."""
    sent = request.FILES.get("file")
    text = sent.read().decode("utf-8", "replace") if sent else sample()
    with transaction.atomic():
        upload = Import.objects.create(
            name=sent.name if sent else f"sample of {ROWS} products", text=text, rows=max(0, text.strip().count("\n"))
        )
        import_products.delay(upload.pk)
    messages.success(request, f"The import of {upload.rows} rows is on its way.")
    return redirect("imports")


def sample():
    lines = [f"T-{number:04},Teapot no. {number},{1000 + number}" for number in range(1, ROWS + 1)]
    return "\n".join(["sku,name,cents", *lines]) + "\n"
