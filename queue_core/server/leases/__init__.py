"""Callers that wait for tasks: `call` is the life of one lease call, `waiting` the watch over the queues."""
