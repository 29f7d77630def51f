"""Clients' calls that change something: each takes effect once, whether in one transaction or in several."""
