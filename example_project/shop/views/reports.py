from django.shortcuts import render
from django.views.decorators.http import require_safe

from shop.models import Comparison, Report


@require_safe
def page(request):
    return render(
        request,
        "shop/reports.html",
        {"reports": Report.objects.order_by("-day")[:31], "comparisons": Comparison.objects.order_by("-pk")[:20]},
    )
