"""What Celery's programs find on Towline, at length: `python -m tests.celery`."""
