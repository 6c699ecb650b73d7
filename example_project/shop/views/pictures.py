import base64
import os

from django.contrib import messages
from django.db import transaction
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from shop import png
from shop.models import Picture
from shop.tasks import make_thumbnail


@require_safe
def page(request):
    return render(request, "shop/pictures.html", {"pictures": Picture.objects.order_by("-pk")[:24]})


@require_POST
def send(request):
    """The image that was sent, or a sample."""
    sent = request.FILES.get("image")
    image = sent.read() if sent else sample()
    with transaction.atomic():
        picture = Picture.objects.create(name=sent.name if sent else "sample")
        make_thumbnail.delay(picture.pk, base64.b64encode(image).decode())
    messages.success(request, f"A picture of {len(image) // 1024} KiB is on its way.")
    return redirect("pictures")


@require_safe
def thumbnail(request, pk):
    picture = get_object_or_404(Picture.objects.exclude(thumbnail=b""), pk=pk)
    return HttpResponse(bytes(picture.thumbnail), content_type="image/png")


def sample(width=640, height=400):
    """A sunset with grain, so that it is as large as a photo."""
    lines = []
    for y in range(height):
        grain = os.urandom(width)
        lines.append(
            b"".join(
                bytes((min(255, 180 + g % 76), 255 * y // height, (g + x // 4) % 256 // 2)) for x, g in enumerate(grain)
            )
        )
    return png.write(lines)
