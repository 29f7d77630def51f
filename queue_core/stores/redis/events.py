"""The names of what a Redis store logs of its link."""

LINK_LOST = "link.lost"
LINK_RESTORED = "link.restored"
STORE_EXPOSED = "store.exposed"
"""The server is set so that what was acknowledged can be lost; the event says how much."""
