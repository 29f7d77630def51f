"""What the host has, what a worker takes of it, and how much of it each pool may have."""
