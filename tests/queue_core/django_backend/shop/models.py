"""The model of Django's documentation on transactions."""

from django.db import models


class Thing(models.Model):
    """A thing with a number."""

    num = models.IntegerField()

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return f"thing {self.num}"
