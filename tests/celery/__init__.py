"""What is claimed of Celery, each claim as a program with its figure: `python -m tests.celery`."""
