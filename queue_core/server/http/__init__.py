"""Connections of the HTTP server, from the socket to a request."""
