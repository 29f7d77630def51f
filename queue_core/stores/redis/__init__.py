"""The Redis store: functions that Redis runs, the link that calls them, and how waiters are woken."""
