"""Workers as tasks of Docker Swarm services."""
