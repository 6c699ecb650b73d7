from django.urls import path

from .views import gateway, imports, orders, pictures, reports

urlpatterns = [
    path("", orders.shop, name="shop"),
    path("orders/", orders.listing, name="orders"),
    path("orders/place/", orders.place, name="place"),
    path("gateway/", gateway.page, name="gateway"),
    path("gateway/switch/", gateway.switch, name="switch"),
    path("imports/", imports.page, name="imports"),
    path("imports/start/", imports.start, name="start-import"),
    path("pictures/", pictures.page, name="pictures"),
    path("pictures/send/", pictures.send, name="send-picture"),
    path("pictures/<int:pk>.png", pictures.thumbnail, name="thumbnail"),
    path("reports/", reports.page, name="reports"),
]
