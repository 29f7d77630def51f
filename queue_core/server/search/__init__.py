"""The endpoints of searches, and of changes of all tasks that match one."""
