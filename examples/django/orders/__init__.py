"""Orders: added by a view, their receipts sent by a task."""
