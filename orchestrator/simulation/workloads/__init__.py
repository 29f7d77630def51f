"""Where a simulation's tasks come from: a file of arrivals, the queue's own lifecycle log, a shape."""
