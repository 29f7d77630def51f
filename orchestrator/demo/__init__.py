"""The demo: a real fleet does real work, grows, survives a kill and shrinks to nothing."""
