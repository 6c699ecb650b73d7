from django.db import models


class Product(models.Model):
    sku = models.CharField(max_length=20, unique=True)
    name = models.CharField(max_length=100)
    cents = models.PositiveIntegerField()

    def __str__(self):
        return self.name


class Order(models.Model):
    product = models.ForeignKey(Product, on_delete=models.PROTECT)
    cents = models.PositiveIntegerField()
    placed_at = models.DateTimeField(auto_now_add=True, db_index=True)
    receipt = models.CharField(max_length=40, blank=True, help_text="The gateway's. Empty: not paid yet.")
    paid_at = models.DateTimeField(null=True, blank=True)

    def __str__(self):
        return f"order {self.pk}"


class Invoice(models.Model):
    """One for each order that is paid. Its number is its primary key."""

    order = models.OneToOneField(Order, on_delete=models.PROTECT)
    made_at = models.DateTimeField(auto_now_add=True)

    def __str__(self):
        return f"invoice {self.pk}"


class Picture(models.Model):
    """A small copy of an image that somebody sent. Empty until it is made."""

    name = models.CharField(max_length=100)
    sent_at = models.DateTimeField(auto_now_add=True)
    thumbnail = models.BinaryField(default=bytes)

    def __str__(self):
        return self.name


class Import(models.Model):
    """A file of products. `handled` counts rows that were worked on, and those twice that were done twice."""

    name = models.CharField(max_length=100)
    text = models.TextField()
    rows = models.PositiveIntegerField()
    handled = models.PositiveIntegerField(default=0)
    begun_at = models.DateTimeField(auto_now_add=True)
    done_at = models.DateTimeField(null=True, blank=True)

    def __str__(self):
        return self.name


class ImportStart(models.Model):
    """A process began to work on an import, at this row."""

    of = models.ForeignKey(Import, on_delete=models.CASCADE, related_name="starts")
    at = models.DateTimeField(auto_now_add=True)
    row = models.PositiveIntegerField()

    def __str__(self):
        return f"{self.of}: at row {self.row}"


class Report(models.Model):
    """What a day sold."""

    day = models.DateField(unique=True)
    orders = models.PositiveIntegerField()
    paid = models.PositiveIntegerField()
    cents = models.PositiveBigIntegerField()
    made_at = models.DateTimeField(auto_now=True)

    def __str__(self):
        return f"report of {self.day}"


class Comparison(models.Model):
    """The gateway's ledger beside our orders, at one slot of the schedule."""

    slot = models.DateTimeField()
    at = models.DateTimeField(auto_now_add=True)
    missed = models.PositiveIntegerField(help_text="Earlier slots that this run stands for.")
    paid = models.PositiveIntegerField(help_text="Orders that we say are paid.")
    charged = models.PositiveIntegerField(help_text="Charges that the gateway made.")
    charged_twice = models.PositiveIntegerField(help_text="Orders that the gateway charged more than once.")

    def __str__(self):
        return f"comparison of {self.slot}"
