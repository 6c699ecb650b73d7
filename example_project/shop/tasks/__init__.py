"""All tasks of the shop: Celery finds them here."""

from .imports import import_products
from .invoices import make_invoice
from .payments import charge
from .pictures import make_thumbnail
from .reports import compare_with_gateway, nightly_report

__all__ = [
    "charge",
    "compare_with_gateway",
    "import_products",
    "make_invoice",
    "make_thumbnail",
    "nightly_report",
]
