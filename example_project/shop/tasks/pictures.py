import base64

from celery_hardened import HardenedTask
from project.celery import app
from shop import png
from shop.models import Picture


class HeavyTask(HardenedTask):
    """What keeps a processor busy, in a queue of its own."""

    abstract = True
    soft_time_limit = 60
    time_limit = 90
    queue = "heavy"


# The image itself is an argument. Above 128 KiB (hardened_payload_threshold) it waits in the payload
# store, and the message only says where: neither this function nor its caller takes notice.
@app.task(base=HeavyTask, name="shop.make_thumbnail", log_args=("picture_id",))
def make_thumbnail(picture_id, image):
    small = png.shrink(base64.b64decode(image), longest=160)
    # Run twice it does the same again: it needs no key.
    Picture.objects.filter(pk=picture_id).update(thumbnail=small)
    return len(small)
