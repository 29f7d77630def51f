"""Names of Celery's queues as names of the store's: see `queue_core.config.celery_names`, which needs no kombu."""

from queue_core.config.celery_names import store_name, true_name

__all__ = ["store_name", "true_name"]
