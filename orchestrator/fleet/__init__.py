"""The workers of a pool as values: their states, their exits, their suspected tasks, and which of them hang. Pure."""
