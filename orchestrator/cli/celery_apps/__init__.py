"""What an app of Celery's is set to, and which of it loses tasks."""
