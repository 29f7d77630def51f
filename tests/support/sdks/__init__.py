"""Programs on App Engine's stock SDKs for Go and Java, what builds and runs them, and what they sent."""
