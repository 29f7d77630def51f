"""The client's half of the HTTP API: connections, retries, and values and errors as JSON."""
