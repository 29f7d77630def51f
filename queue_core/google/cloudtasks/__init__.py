"""The Cloud Tasks API v2beta2 over the queues of a server. Its words, messages and errors stay in this folder."""
