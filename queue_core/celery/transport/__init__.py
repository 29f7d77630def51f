"""kombu's transport: see `queue_core.kombu`, which registers it."""
