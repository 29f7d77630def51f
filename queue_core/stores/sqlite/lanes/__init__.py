"""Lanes of tags and their rotation in the SQLite store (ADR 37)."""
