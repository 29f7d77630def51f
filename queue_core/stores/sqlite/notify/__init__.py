"""Texts between the processes that have one file open."""
