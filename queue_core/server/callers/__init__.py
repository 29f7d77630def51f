"""Callers: their tokens and roles, what they may see, and how much they may hold open."""
