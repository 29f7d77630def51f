"""Names of the transport's log lines."""

from typing import Final

LEASE_LOST: Final = "lease.lost"
LEASE_NOT_HELD: Final = "lease.not_held"
LEASES_NOT_ENDED: Final = "leases.not_ended"
LEASES_NOT_RENEWED: Final = "leases.not_renewed"
BROKER_UNAVAILABLE: Final = "broker.unavailable"
ROUND_FAILED: Final = "keeper.round_failed"
WORKER_RETIRED: Final = "worker.retired"
MESSAGE_DROPPED: Final = "message.dropped"
MESSAGE_EXPIRED: Final = "message.expired"
