"""Why arrivals can't be read: where it stands, what it is, and what to write instead."""

from orchestrator.errors import OrchestratorError


class WorkloadError(OrchestratorError):
    """Arrivals that can't be used. `where` is a file with its line, or a shape; `fix` what to do about it."""

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.where = where
        self.fix = fix
