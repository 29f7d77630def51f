"""Simulate a pool in virtual time: recorded or invented arrivals, the pool's own decisions, and their cost. Pure."""
