"""Apps of Celery's: their settings, and those of them that lose tasks."""
