"""Settings of processes under fault, passed in their environment."""

import json
import os
from dataclasses import asdict, dataclass

VARIABLE = "FAULTS_SETTINGS"


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """The servers, the work and the history of a process.

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
        """Return the environment variable with these settings."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> "FaultSettings":
        """Read the settings from the environment."""
        members = json.loads(os.environ[VARIABLE])
        return cls(**{**members, "servers": tuple(members["servers"])})
