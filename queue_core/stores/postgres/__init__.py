"""The PostgreSQL store: several hosts share one database."""
