from django.contrib import admin

from .models import Comparison, Import, Invoice, Order, Product, Report


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ("id", "product", "cents", "placed_at", "receipt", "paid_at")
    list_select_related = ("product",)
    list_filter = ("placed_at",)
    search_fields = ("receipt",)


@admin.register(Invoice)
class InvoiceAdmin(admin.ModelAdmin):
    list_display = ("id", "order", "made_at")
    list_select_related = ("order",)
    raw_id_fields = ("order",)


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):
    list_display = ("sku", "name", "cents")
    search_fields = ("sku", "name")


@admin.register(Import)
class ImportAdmin(admin.ModelAdmin):
    list_display = ("name", "rows", "handled", "begun_at", "done_at")
    exclude = ("text",)


@admin.register(Report)
class ReportAdmin(admin.ModelAdmin):
    list_display = ("day", "orders", "paid", "cents", "made_at")


@admin.register(Comparison)
class ComparisonAdmin(admin.ModelAdmin):
    list_display = ("slot", "at", "missed", "paid", "charged", "charged_twice")
