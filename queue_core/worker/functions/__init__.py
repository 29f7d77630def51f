"""Functions as tasks: their arguments as JSON, the queues they are added to, and the hooks around a worker's life."""
