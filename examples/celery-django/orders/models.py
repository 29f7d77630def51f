"""Orders as the shop keeps them."""

from django.db import models


class Order(models.Model):
    """An order, and whether its customer was sent a letter."""

    item = models.CharField(max_length=100)
    is_confirmed = models.BooleanField(default=False)
    letters = models.IntegerField(default=0)
