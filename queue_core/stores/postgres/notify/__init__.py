"""Waking waiters of other processes through PostgreSQL's LISTEN and NOTIFY."""
