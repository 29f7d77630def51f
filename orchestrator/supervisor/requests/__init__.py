"""Operators' orders that a supervisor carries out once, unlike overrides, which last."""
