"""How many workers a pool should have, and which of them start or go. Pure."""
