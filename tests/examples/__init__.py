"""Each folder of `examples/` does what its page says, run as a user runs it."""
