"""A shop that confirms its orders by Celery's tasks."""

from shop.celery import app

__all__ = ["app"]
