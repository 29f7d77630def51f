"""Moves messages of any of kombu's brokers into queues: each is added, and then acknowledged where it was.

A message that is moved twice arrives once: its task's name is derived from it.
"""
