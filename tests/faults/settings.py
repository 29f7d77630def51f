"""What processes under fault are told by their environment."""

import json
import os
from dataclasses import asdict, dataclass

VARIABLE = "FAULTS_SETTINGS"


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """Where a process finds the servers, what it does, and where it writes its history.

    Args:
        history: the folder of all histories.
        work_seconds: how long a handler works on a task.
    """

    history: str
    servers: tuple[str, ...] = ()
    token: str = ""
    queue: str = "first"
    tasks_per_second: float = 1.0
    work_seconds: float = 0.0

    def environment(self) -> dict[str, str]:
        """The variable that says all this."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> "FaultSettings":
        """What `environment` said."""
        members = json.loads(os.environ[VARIABLE])
        return cls(**{**members, "servers": tuple(members["servers"])})
