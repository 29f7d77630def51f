"""Messages of kombu that are no tasks, in memory, and their way between the processes of one store."""
