"""Addresses of the site that browsers visit: Django's admin, and a page on which the shop is used and broken."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import admin
from django.db import connection
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.middleware.csrf import get_token
from django.test.utils import CaptureQueriesContext
from django.urls import path
from django.utils.html import format_html

from tests.support import django_live_app

#: Nothing but files of this very site: an inline script or style is refused, and the console says so.
POLICY = "default-src 'self'"

Answer = Callable[[HttpRequest], HttpResponse]


def strict(answer: Answer) -> Answer:
    """Middleware: every page says what it may load, and how many statements it took."""

    def wrapped(request: HttpRequest) -> HttpResponse:
        with CaptureQueriesContext(connection) as statements:
            response = answer(request)
        response["Content-Security-Policy"] = POLICY
        response["X-Statements"] = str(len(statements))
        return response

    return wrapped


def shop(request: HttpRequest) -> HttpResponse:
    """Order, break the gateway, mend it."""
    if request.method == "POST":
        if "mend" in request.POST:
            django_live_app.DOWN.unlink(missing_ok=True)
        elif "break" in request.POST:
            django_live_app.DOWN.touch()
        else:
            for order in request.POST["orders"].split():
                django_live_app.charge.delay(int(order), card="4242-4242")
            for image in request.POST["images"].split():
                django_live_app.resize.delay(image)
        return HttpResponseRedirect("/shop/")
    return HttpResponse(
        format_html(
            '<!doctype html><html lang="en"><title>Shop</title><h1>Shop</h1><form method="post">'
            '<input type="hidden" name="csrfmiddlewaretoken" value="{}">'
            '<label>Orders <input name="orders"></label> <label>Images <input name="images"></label> '
            '<input type="submit" name="order" value="Order">'
            '<input type="submit" name="break" value="Break the gateway">'
            '<input type="submit" name="mend" value="Mend the gateway"></form>',
            get_token(request),
        )
    )


def icon(request: HttpRequest) -> HttpResponse:
    """A browser asks for it by itself."""
    return HttpResponse(status=204)


urlpatterns = [path("admin/", admin.site.urls), path("shop/", shop), path("favicon.ico", icon)]
