"""Builds the manual: the pages of `docs/` as a site that is read without a network."""
