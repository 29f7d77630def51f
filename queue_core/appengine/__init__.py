"""App Engine's own client libraries over a queue of Towline."""
