"""Commands over queues: what a producer, a worker or an administrator types. Each is imported when it is run."""
