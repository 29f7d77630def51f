"""What server and client must agree on: how values and errors look on the wire, and how bytes travel."""
