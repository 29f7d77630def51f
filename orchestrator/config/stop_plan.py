"""How a pool's workers are stopped: what follows a first request to finish, before a worker is killed. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopStep:
    """A further signal to a worker's first process, never to its group, and the seconds that it has from then on."""

    signal: str
    seconds: float
