"""The demo: real work on real input, done by a real fleet that grows, survives a kill and shrinks to nothing."""
