"""The PostgreSQL store: several hosts, one database."""
