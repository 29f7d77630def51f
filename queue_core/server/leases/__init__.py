"""Callers that wait for tasks. `call`: the life of one lease call; `waiting`: the watch over the queues they wait on."""
