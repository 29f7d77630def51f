"""Google's APIs over the queues: App Engine's, Cloud Tasks' and the Task Queue's; and Google's queue files."""
