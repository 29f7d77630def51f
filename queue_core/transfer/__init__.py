"""Queues between stores: exported to a file of JSON lines, imported from one, or moved straight from store to store."""
