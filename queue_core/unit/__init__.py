"""One transaction: the verbs that run in it, and the service that commits it and publishes its events."""
