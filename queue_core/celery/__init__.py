"""Towline as Celery's broker: kombu's transport, the bridge from other brokers, and mailboxes."""
