"""The settings of pools, runtimes and schedules, as pydantic models."""
