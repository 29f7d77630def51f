"""The ground of the server: its options, events and problems, and the bounds of bodies."""
