import os
import secrets

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import transaction

from shop.models import Product
from shop.schedules import make_schedules


class Command(BaseCommand):
    help = "Make tables, the first products, the schedules and the user `admin`. Does no harm when it is run again."

    def handle(self, *args, **options):
        call_command("migrate", interactive=False, verbosity=0)
        with transaction.atomic():
            for sku, name, cents in [("CUP", "Cup", 900), ("POT", "Teapot", 4500), ("TRAY", "Tray", 2250)]:
                Product.objects.get_or_create(sku=sku, defaults={"name": name, "cents": cents})
            make_schedules()
            self.stdout.write(self._admin())

    def _admin(self):
        """The user, with `EXAMPLE_ADMIN_PASSWORD` if that is set, else with one that is drawn and told once."""
        given = os.environ.get("EXAMPLE_ADMIN_PASSWORD")
        user, made = get_user_model().objects.get_or_create(
            username="admin", defaults={"is_staff": True, "is_superuser": True}
        )
        if not made and not given:
            return "admin: user admin, with the password of the first start"
        password = given or secrets.token_urlsafe(9)
        user.set_password(password)
        user.save()
        return "admin: user admin, " + ("password as given" if given else f"password {password}")
