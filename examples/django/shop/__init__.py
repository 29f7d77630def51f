"""A shop that sends receipts by Django's tasks."""
