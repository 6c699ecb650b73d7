from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("admin/", admin.site.urls),
    path("", include("shop.urls")),
    # Browsers ask for it on pages that name no icon, as the admin's.
    path("favicon.ico", RedirectView.as_view(url=static("shop/icon.png"))),
]
