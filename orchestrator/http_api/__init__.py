"""The supervisor's HTTP API: pool statistics for other scalers, metrics and health. It only reads the fleet view."""
