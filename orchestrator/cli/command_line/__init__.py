"""The command line as a whole: completion at a Tab, and commands that work on one host only."""
