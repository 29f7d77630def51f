"""The verbs as coroutines."""
