"""The front door that speaks Google's Task Queue REST API v1beta2; its foreign words stay in here."""
