"""The settings of stores, servers and queues, and how mistakes in them are described."""
