"""Tests that kombu and Celery come with, run on Towline."""
