"""The store in memory: the reference that all others are held to."""
