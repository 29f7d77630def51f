"""The names of what a PostgreSQL store logs."""

LISTENER_LOST = "listener.lost"
LISTENER_RESTORED = "listener.restored"
SIGNALS_UNHEARD = "signals.unheard"
"""Nothing can be listened to here: waiters look for themselves every few seconds; the event says why."""
SIGNALS_DROPPED = "signals.dropped"
UPKEEP_FAILED = "upkeep.failed"
"""Dead rows were not cleared away; the server's own autovacuum does it later."""
