"""The Redis store: functions that Redis runs, the client that calls them, and the wake-up of waiters."""
