"""One commit for many callers."""
