"""The verbs of schedules: inside one transaction, for a program that opens the store, and over HTTP."""
