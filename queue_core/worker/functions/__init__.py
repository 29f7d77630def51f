"""Functions as tasks: arguments as JSON, the queues that an app adds to, and `Function` itself."""
