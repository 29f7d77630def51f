"""HTTP/1.1 connections of the server, from the socket to a request."""
