"""Sources of a simulation's tasks: a file of arrivals, the queue's own lifecycle log, a shape."""
