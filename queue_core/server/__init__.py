"""The queue over HTTP."""
