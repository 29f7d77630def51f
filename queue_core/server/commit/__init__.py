"""Group commit: one transaction and one sync for the operations of many callers."""
