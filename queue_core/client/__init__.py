"""Clients: the verbs of queues as a program calls them, in a store that it opens or at a server."""
