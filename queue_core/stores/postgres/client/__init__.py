"""Connections to PostgreSQL: opening, pooling, timeouts, statements and the encoding of values."""
