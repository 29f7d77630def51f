"""Queues that are spread over the nodes of a Redis cluster."""
