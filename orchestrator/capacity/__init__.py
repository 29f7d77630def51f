"""The host's capacity, the usage of one worker, and each pool's allocation."""
