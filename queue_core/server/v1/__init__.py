"""The endpoints of `/v1` that are not on the fast path, their handlers, and the OpenAPI document."""
