"""Orders as the shop keeps them."""

from django.db import models


class Order(models.Model):
    """An order, and how many receipts its customer was sent: one."""

    item = models.CharField(max_length=100)
    receipts = models.IntegerField(default=0)
