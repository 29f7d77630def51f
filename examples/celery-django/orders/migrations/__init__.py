"""The database's shapes."""
