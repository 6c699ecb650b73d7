from django.contrib import messages
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Count, Q
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from shop.models import Order, Product
from shop.tasks import charge

#: Orders that one click may place.
MOST = 100


@require_safe
def shop(request):
    return render(
        request,
        "shop/shop.html",
        {"products": Product.objects.order_by("pk")[:20], "counts": counts(), "orders": newest()[:5]},
    )


@require_POST
def place(request):
    product = get_object_or_404(Product, pk=request.POST.get("product"))
    try:
        number = min(max(int(request.POST.get("number", "1")), 1), MOST)
    except ValueError:
        number = 1
    with transaction.atomic():
        orders = [Order.objects.create(product=product, cents=product.cents) for _ in range(number)]
        for order in orders:
            charge.delay(order.pk)  # is sent after the commit, and never if this is rolled back
    placed = "1 order is placed." if number == 1 else f"{number} orders are placed."
    messages.success(request, placed)
    return redirect("orders")


@require_safe
def listing(request):
    page = Paginator(newest(), 50).get_page(request.GET.get("page"))
    return render(request, "shop/orders.html", {"page": page, "counts": counts()})


def newest():
    return Order.objects.select_related("product", "invoice").order_by("-pk")


def counts():
    return Order.objects.aggregate(
        placed=Count("pk"), paid=Count("pk", filter=~Q(receipt="")), invoiced=Count("invoice")
    )
