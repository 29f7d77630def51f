"""Use the queues of a Celery fleet as a source of work, without changing the fleet. Celery itself is not imported."""
