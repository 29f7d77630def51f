"""The app's name."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The app's configuration."""

    name = "tests.queue_core.django_backend.shop"
    label = "shop"
