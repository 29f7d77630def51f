"""How many connections a process takes: as its limit of descriptors allows, with some left for everything else."""

import resource
from typing import Final

MAX_CONNECTIONS: Final = 50_000
"""Connections of a listener, whatever the limit of descriptors."""
MIN_CONNECTIONS: Final = 16
"""Connections of a listener, at least."""
MIN_SPARE_FILES: Final = 64
"""Descriptors left for the store, workers and logs, at least; a quarter of all where that is more."""
MAX_GRPC_CONNECTIONS: Final = 1_000
"""Connections of a gRPC listener, at most; it has a quarter of the process's descriptors for them."""
FILES_PER_GRPC_CONNECTION: Final = 3
"""Its socket, and both ends of the one that leads on to gRPC's own server."""


def max_connections_for(files: int) -> int:
    """Return how many connections a process with this limit of descriptors takes."""
    return min(MAX_CONNECTIONS, max(MIN_CONNECTIONS, files - max(MIN_SPARE_FILES, files // 4)))


def max_grpc_connections_for(files: int) -> int:
    """Return how many a gRPC listener takes."""
    return min(MAX_GRPC_CONNECTIONS, max_connections_for(files) // (4 * FILES_PER_GRPC_CONNECTION))


def file_limit() -> int:
    """Return how many descriptors this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
