"""Lease calls, most of which wait: their lives, who is woken first, and what this server knows of workers by them."""
