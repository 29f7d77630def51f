"""The pages of the shop."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from orders.models import Order
from orders.tasks import send_receipt


@csrf_exempt
@require_POST
@transaction.atomic
def add_order(request: HttpRequest) -> JsonResponse:
    """Add an order and the task of its receipt, both or neither."""
    order = Order.objects.create(item=request.POST["item"])
    send_receipt.enqueue(order.pk)
    if request.POST.get("card") == "expired":
        transaction.set_rollback(True)
        return JsonResponse({"error": "the card has expired"}, status=402)
    return JsonResponse({"order": order.pk}, status=201)


def show_order(_request: HttpRequest, number: int) -> JsonResponse:
    """Show an order."""
    order = get_object_or_404(Order, pk=number)
    return JsonResponse({"item": order.item, "receipts": order.receipts})
