"""Workers as containers of a Docker Engine."""
