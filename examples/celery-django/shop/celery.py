"""The Celery app, as Celery's own pages on Django write it, and one line more."""

import os

from celery import Celery

import queue_core.kombu  # noqa: F401  line 1: makes Towline a broker of Celery's

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
