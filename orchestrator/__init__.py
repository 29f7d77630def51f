"""Sizes pools of worker processes or containers to the work that waits."""
