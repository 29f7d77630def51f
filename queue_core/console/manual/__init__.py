"""The manual: the pages of `docs/`, which a release has in one file, for browsers without a network."""
