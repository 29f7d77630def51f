"""The fleet's errors. The class says what the caller can do.

OrchestratorError
├── ConfigError              correct the settings; it lists every problem, not only the first
├── SpawnError               back off, then try again: a worker could not be started
│   └── RuntimeUnavailableError  hold, and try again after a pause: the engine does not answer or is not ready
│       ├── StartPendingError    try again next turn: it is being prepared beside the turns
│       └── QuotaError           hold for half a minute: its cluster's quota is used up
├── SourceUnavailableError   hold, and try again next turn: the queue did not answer
├── AlreadySupervisedError   stop the other supervisor, or use another state directory
├── NoOutputError            name a pool or worker that has output here; the message lists them
└── ReloadRefusedError       correct the file; the supervisor keeps the settings it has
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queue_core.config.messages import SettingProblem


class OrchestratorError(Exception):
    """The base of every error that the fleet raises on purpose."""


class ConfigError(OrchestratorError):
    """The settings cannot be used; `problems` has all of them."""

    def __init__(self, problems: "Sequence[SettingProblem]") -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{'.'.join(map(str, m.path))}: {m.message}" for m in self.problems))


class SpawnError(OrchestratorError):
    """A worker could not be started at all."""


class RuntimeUnavailableError(SpawnError):
    """The engine that runs workers did not answer or is not ready; the pool itself is fine."""


class StartPendingError(RuntimeUnavailableError):
    """A start waits for what another thread prepares: that takes longer than a turn may.

    `seconds`: when to try again, where that is known to be sooner than the next turn.
    """

    def __init__(self, message: str, *, seconds: float | None = None) -> None:
        self.seconds = seconds
        super().__init__(message)


class QuotaError(RuntimeUnavailableError):
    """The cluster's quota is used up; the pool itself is fine."""


class SourceUnavailableError(OrchestratorError):
    """The queue did not answer."""


class AlreadySupervisedError(OrchestratorError):
    """Another supervisor holds the lock of this state directory."""


class ReloadRefusedError(OrchestratorError):
    """The settings file was read again and can't be used; `lines` has every problem with its place."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


class NoOutputError(OrchestratorError):
    """There is no output of such a pool or worker; `fix` says where it may be."""

    def __init__(self, message: str, *, fix: str) -> None:
        self.fix = fix
        super().__init__(message)
