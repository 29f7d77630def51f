"""Schedules: when their ticks are, which are due, and what a store keeps of them. Pure."""
