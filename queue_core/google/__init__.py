"""What Google's clients speak: App Engine's, Cloud Tasks' and the Task Queue's APIs, and its queue files."""
