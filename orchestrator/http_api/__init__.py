"""The supervisor's own HTTP: numbers of pools for other scalers, metrics, health. It only reads what it is shown."""
