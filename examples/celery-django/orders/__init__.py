"""Orders: added by a view, confirmed by a task."""
