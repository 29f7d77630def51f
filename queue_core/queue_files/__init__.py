"""App Engine's queue.yaml and queue.xml: read, checked, and turned into queue settings."""
