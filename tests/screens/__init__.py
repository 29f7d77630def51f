"""What a person sees: every command on a real pseudo-terminal, its screens kept as text under `expected/`."""
