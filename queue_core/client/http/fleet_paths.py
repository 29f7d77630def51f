"""The paths of a supervisor's API that a server without one passes on, or says where they are served (ADR 97)."""

from typing import Final

FLEET: Final = "/v1/fleet"
SUPERVISORS: Final = "/v1/supervisors"
READS: Final[dict[str, str | None]] = {
    "/v1/pools": "stats",
    "/v1/trends": "stats",
    "/v1/pools/{pool}/stats": "stats",
    "/v1/pools/{pool}/decisions": "stats",
    "/v1/pools/{pool}/why": "stats",
    "/v1/pools/{pool}/overrides": "stats",
    "/v1/supervisor/livez": None,
    "/v1/supervisor/readyz": None,
    "/v1/supervisor/leader": None,
    "/v1/supervisor/settings": "events",
    "/v1/supervisor/reload": "stats",
    "/v1/logs": "events",
    FLEET: "stats",
    "/v1/workers": "stats",
    "/v1/workers/{worker}/log": "events",
    "/v1/workers/{worker}/stack": "events",
    "/v1/workers/{worker}": "stats",
    "/v1/deaths": "stats",
    "/v1/deaths/{worker}": "events",
    "/v1/hosts/{host}": "stats",
}
"""What is read from the supervisor, and the permission that it needs here and there; None: everybody."""
ORDERS: Final = (
    "/v1/pools/{pool}/scale",
    "/v1/pools/{pool}/pause",
    "/v1/pools/{pool}/resume",
    "/v1/pools/{pool}/finish-by",
    "/v1/pools/{pool}/replace",
    "/v1/pools/{pool}/what-if",
    "/v1/hosts/{host}/drain",
    "/v1/hosts/{host}/undrain",
    "/v1/supervisor/reload",
    "/v1/workers/{worker}/drain",
    "/v1/workers/{worker}/kill",
)
"""What only the supervisor itself takes."""
PRESENT_WORKERS: Final = "/v1/present-workers"
"""The workers that lease from the queues, supervised or not: a server that has this path passes the others on."""
