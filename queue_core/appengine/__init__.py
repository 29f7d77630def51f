"""App Engine's own client library on a Towline server."""
