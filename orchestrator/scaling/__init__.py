"""Decide how many workers a pool should have, and plan which of them start or go. Pure."""
