"""The in-memory store: the reference that the other stores are tested against."""
