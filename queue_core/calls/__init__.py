"""Clients' calls: how a verb is carried out, and how it takes effect once. Each verb is a value of `*_verbs.py`."""
