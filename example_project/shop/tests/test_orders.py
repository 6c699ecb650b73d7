"""What an order leads to, without broker, worker and Redis: inside ``inline`` each task runs after the commit."""

from unittest import mock

from django.test import TransactionTestCase

from celery_hardened import Query
from celery_hardened.testing import assert_idempotent, inline, key_of
from project.celery import app
from shop import gateway
from shop.models import Invoice, Order, Product
from shop.tasks import charge, make_invoice


class OrdersTest(TransactionTestCase):
    def setUp(self):
        self.product = Product.objects.create(sku="POT", name="Teapot", cents=4500)
        inside = inline(app, propagate=False, await_commits=True)
        self.inside = inside.__enter__()
        self.addCleanup(inside.__exit__, None, None, None)
        self.charged = {}
        patched = mock.patch.object(gateway, "charge", self._charge)
        patched.start()
        self.addCleanup(patched.stop)
        self.faults = []

    def _charge(self, reference, cents, *, key):
        """As the gateway does it: once for each key, and an answer that may get lost."""
        self.charged.setdefault(key, (reference, cents))
        if self.faults:
            raise self.faults.pop(0)
        return f"R-{reference}"

    def place(self, number):
        return self.client.post("/orders/place/", {"product": self.product.pk, "number": number}, follow=True)

    def test_orders_are_paid_and_invoiced(self):
        page = self.place(20)

        self.assertContains(page, "20 orders are placed.")
        self.assertContains(page, "<strong>20</strong> paid")
        self.assertEqual(Invoice.objects.count(), 20)
        self.assertEqual(len(self.charged), 20)

    def test_an_answer_that_was_lost_is_asked_for_again(self):
        self.faults = [gateway.GatewayError("no answer")] * 3
        self.place(1)

        order = Order.objects.get()
        self.assertEqual(order.receipt, f"R-order-{order.pk}")
        self.assertEqual(list(self.charged.values()), [(f"order-{order.pk}", 4500)])

    def test_an_outage_that_lasts_is_a_dead_letter(self):
        self.faults = [gateway.GatewayError("the gateway says 503")] * 4
        self.place(1)

        [stored] = self.inside.dead_letters.find(Query(task="shop.charge")).letters
        self.assertEqual(stored.letter.reason, "exhausted")
        self.assertEqual(Order.objects.get().receipt, "")

    def test_a_declined_card_is_not_tried_again(self):
        self.faults = [gateway.CardDeclinedError("the card was declined")]
        self.place(1)

        [stored] = self.inside.dead_letters.find(Query(task="shop.charge")).letters
        self.assertEqual((stored.letter.reason, stored.letter.attempt), ("permanent", 0))

    def test_a_process_that_dies_after_the_charge_charges_nothing_twice(self):
        order = Order.objects.create(product=self.product, cents=4500)
        assert_idempotent(charge, order.pk, effects=lambda: sorted(self.charged))
        self.assertEqual(Invoice.objects.count(), 1)

    def test_an_invoice_is_made_once(self):
        order = Order.objects.create(product=self.product, cents=4500)
        first = make_invoice.delay(order.pk).get()
        self.assertEqual(make_invoice.delay(order.pk).get(), first)
        self.assertEqual(Invoice.objects.count(), 1)

    def test_an_order_is_what_a_charge_is_known_by(self):
        self.assertEqual(key_of(charge, 7), key_of(charge, order_id=7))
        self.assertNotEqual(key_of(charge, 7), key_of(charge, 8))
