"""Celery's tasks, which know nothing of their broker."""

from celery import shared_task
from django.db.models import F

from orders.models import Order


@shared_task(autoretry_for=(OSError,), retry_backoff=True, max_retries=5, time_limit=60)
def confirm(number: int) -> None:
    """Tell a customer that the order has come: here, count the letter. Run twice, it sends one."""
    Order.objects.filter(pk=number, is_confirmed=False).update(is_confirmed=True, letters=F("letters") + 1)


@shared_task(time_limit=60)
def chase() -> int:
    """Add a task for each order that was not confirmed; Celery's beat does this every 5 s."""
    late = list(Order.objects.filter(is_confirmed=False).values_list("pk", flat=True)[:100])
    for number in late:
        confirm.delay(number)
    return len(late)
