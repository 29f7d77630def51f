"""Writes the reference pages of the manual from the program itself."""
