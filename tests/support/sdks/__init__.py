"""Programs on App Engine's stock SDKs for Go and Java, how they are built and run, and recordings of their calls."""
