"""Bodies of requests: what of them comes into memory."""
