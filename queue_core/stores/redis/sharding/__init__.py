"""Queues that are sharded over the nodes of a Redis cluster."""
