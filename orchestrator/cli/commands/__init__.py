"""The commands about pools and workers, about one module each."""
