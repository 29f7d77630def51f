"""Attempts of a task: what is kept of a lease that ended without its work being done, and what an exception becomes."""
