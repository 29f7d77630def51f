"""The names of everything a server logs."""

SERVER_STARTED = "server.started"
SERVER_STOPPED = "server.stopped"
TURN_FAILED = "turn.failed"
ANSWER_FAILED = "answer.failed"
REQUEST_FAILED = "request.failed"
STORE_FAILED = "store.unavailable"
SIGNALS_UNHEARD = "signals.unheard"
