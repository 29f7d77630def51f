"""Connections to Redis: single servers, sentinels and clusters."""
