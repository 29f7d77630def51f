"""A pool in virtual time: recorded or invented arrivals, the pool's own decisions, and what they would cost. Pure."""
