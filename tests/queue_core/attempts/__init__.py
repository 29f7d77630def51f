"""Attempts of tasks, and what an exception becomes."""
