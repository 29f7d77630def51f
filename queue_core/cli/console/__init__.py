"""The console alone, on a listener of its own."""
