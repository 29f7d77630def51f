"""Callers that wait for tasks. `call`: the life of a lease call; `waiting`: the watch over the queues waited on."""
