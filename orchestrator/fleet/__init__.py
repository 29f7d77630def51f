"""The workers of a pool as values: their states, their exits, and which of them hang. Pure."""
