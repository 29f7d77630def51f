"""Django's tasks. They know nothing of Towline: `TASKS` in the settings names it."""

from django_tasks import task  # on Django 6: from django.tasks import task

from orders.models import Order


@task()
def send_receipt(number: int) -> None:
    """Send the receipt of an order: here, count it. Run twice, it sends one."""
    Order.objects.filter(pk=number, receipts=0).update(receipts=1)
