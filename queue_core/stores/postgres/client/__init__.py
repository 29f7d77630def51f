"""Connections to PostgreSQL: how they are opened, borrowed, timed out, and how values are encoded."""
