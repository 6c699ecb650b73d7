from unittest import mock

from django.test import TestCase

from celery_hardened.testing import inline
from project.celery import app
from shop import gateway, png
from shop.models import Import, Picture, Product, Report
from shop.tasks import import_products, make_thumbnail, nightly_report
from shop.tasks import imports as import_tasks
from shop.views import imports, pictures


class PagesTest(TestCase):
    def setUp(self):
        inside = inline(app, propagate=False)
        inside.__enter__()
        self.addCleanup(inside.__exit__, None, None, None)

    def test_each_page_is_there(self):
        ledger = {"mode": "works", "modes": ["works", "slow"], "charges": 0, "cents": 0, "asked": 0}
        with mock.patch.object(gateway, "ledger", lambda most: {**ledger, "charged_twice": 0, "entries": []}):
            for path in ("/", "/orders/", "/gateway/", "/imports/", "/pictures/", "/reports/"):
                with self.subTest(path):
                    self.assertContains(self.client.get(path), "<h1>")

    def test_a_gateway_that_is_away_is_a_page_with_a_sentence(self):
        with mock.patch.object(gateway, "ledger", side_effect=gateway.GatewayError("the gateway does not answer")):
            self.assertContains(self.client.get("/gateway/"), "the gateway does not answer", status_code=503)

    def test_nothing_is_changed_by_looking(self):
        for path in ("/orders/place/", "/gateway/switch/", "/imports/start/", "/pictures/send/"):
            self.assertEqual(self.client.get(path).status_code, 405)

    def test_an_import_makes_its_products_and_tells_where_it_began(self):
        with mock.patch.object(import_tasks, "PACE", 0), mock.patch.object(imports, "ROWS", 30):
            page = self.client.post("/imports/start/", follow=True)
        self.assertContains(page, "30 rows handled")
        self.assertEqual(list(Import.objects.get().starts.values_list("row", flat=True)), [1])
        self.assertEqual(Product.objects.count(), 30)

    def test_an_import_goes_on_with_the_row_that_failed(self):
        upload = Import.objects.create(name="three", text="sku,name,cents\nA,a,1\nB,b,2\nC,c,3\n", rows=3)
        make = Product.objects.update_or_create
        faults = {"B": ConnectionError("the database went away")}

        def flaky(sku, defaults):
            if sku in faults:
                raise faults.pop(sku)
            return make(sku=sku, defaults=defaults)

        with mock.patch.object(import_tasks, "PACE", 0), mock.patch.object(Product.objects, "update_or_create", flaky):
            import_products.delay(upload.pk)
        upload.refresh_from_db()
        self.assertEqual(list(upload.starts.values_list("row", flat=True)), [1, 2])
        self.assertEqual(upload.handled, 3)

    def test_a_picture_is_made_small(self):
        page = self.client.post("/pictures/send/", follow=True)
        picture = Picture.objects.get()
        self.assertContains(page, f"/pictures/{picture.pk}.png")
        self.assertEqual(self.client.get(f"/pictures/{picture.pk}.png").content[:4], b"\x89PNG")

    def test_what_is_no_picture_is_refused(self):
        with self.assertRaises(png.NotAPictureError):
            make_thumbnail.delay(1, "bm8gcGljdHVyZQ==").get()

    def test_the_report_of_a_night(self):
        nightly_report.delay().get()
        self.assertEqual(Report.objects.get().orders, 0)


class PngTest(TestCase):
    def test_every_filter_of_a_line_is_undone(self):
        above = bytes((10, 20, 30, 40))
        for kind, line in enumerate([(1, 2, 3, 4)] * 5):
            with self.subTest(kind):
                undone = bytearray(line)
                png._undo(kind, undone, above, 1)
                self.assertEqual(list(undone), _as_the_specification_says(kind, line, above))

    def test_the_mean_of_squares(self):
        image = png.write([bytes((0, 0, 100, 100)), bytes((0, 0, 100, 100))], color=0)
        _, _, _, lines = png._read(png.shrink(image, longest=2))
        self.assertEqual(lines, [bytes((0, 100))])

    def test_a_cut_picture_is_refused(self):
        image = pictures.sample(20, 10)
        for end in range(8, len(image) - 20, 7):
            with self.assertRaises(png.NotAPictureError):
                png.shrink(image[:end], longest=5)


def _as_the_specification_says(kind, line, above):
    done = []
    for x, value in enumerate(line):
        left = done[x - 1] if x else 0
        corner = above[x - 1] if x else 0
        near = left + above[x] - corner
        paeth = min((left, above[x], corner), key=lambda one: abs(near - one))
        done.append((value + [0, left, above[x], (left + above[x]) // 2, paeth][kind]) % 256)
    return done
