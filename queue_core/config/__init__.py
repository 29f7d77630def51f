"""The settings of stores, servers and queues, and messages about problems in them."""
