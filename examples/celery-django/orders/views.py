"""The pages of the shop."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from orders.models import Order
from orders.tasks import confirm


@csrf_exempt
@require_POST
@transaction.atomic
def add_order(request: HttpRequest) -> JsonResponse:
    """Add an order; once it is committed, add the task that confirms it."""
    order = Order.objects.create(item=request.POST["item"])
    confirm.delay_on_commit(order.pk)
    return JsonResponse({"order": order.pk}, status=201)


def show_order(_request: HttpRequest, number: int) -> JsonResponse:
    """Show an order."""
    order = get_object_or_404(Order, pk=number)
    return JsonResponse({"item": order.item, "is_confirmed": order.is_confirmed, "letters": order.letters})
