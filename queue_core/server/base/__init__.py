"""What all of the server stands on: its options, events and problems."""
