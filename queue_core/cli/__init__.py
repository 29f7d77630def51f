"""The commands over queues, for producers, workers and administrators. Each is imported when it is run."""
