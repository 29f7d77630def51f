"""App Engine's queue.yaml and queue.xml: read, validate, and plan the changes of queues."""
