"""Pools of Celery's workers under `towline up`."""
