"""A template: a process that has imported an application once, and forks workers that begin at once (ADR 33)."""
