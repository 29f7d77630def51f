"""The files of an application that a template has imported, and whether they have changed since."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from orchestrator.base.clock import Monotonic
from orchestrator.base.values import ServedTags
from orchestrator.runtime import ApplicationReport

_NANOSECONDS = 1_000_000_000


class FileState(NamedTuple):
    """A file as a template reports it; see `queue_core.worker.template.imported_files.FileVersion`."""

    modified_ns: int
    size_bytes: int
    changed_ns: int

    def has_content_of(self, other: "FileState | None") -> bool:
        """Return whether nothing tells that the content differs."""
        return other is not None and self[:2] == other[:2]


@dataclass(frozen=True, slots=True)
class ImportedApplication:
    """The result of a pool's last import. `key` is that of its template, `begun_at` when the import began.

    `files` have the times at which each got the content that it has.
    """

    key: str
    begun_at: Monotonic
    failure: str
    files: Mapping[str, FileState]
    schedules: Sequence[Mapping[str, object]] = ()
    served: ServedTags | None = None

    @property
    def report(self) -> ApplicationReport:
        """The result as a supervisor needs it."""
        newest = max(self.files, key=lambda path: (self.files[path].changed_ns, path), default="")
        at = self.files[newest].changed_ns / _NANOSECONDS if newest else 0.0
        if self.failure:
            return ApplicationReport(self.failure, at, newest)
        return ApplicationReport("", at, newest, self.schedules, self.served)

    def holds(self, key: str, *, since: Monotonic) -> bool:
        """Return whether another import would find the same; a failure from before `since` may have other causes."""
        is_recent = self.begun_at >= since or bool(self.files and not self.failure)
        return is_recent and self.key == key and not have_changed(self.files)

    def times_of(self, files: Mapping[str, FileState]) -> dict[str, FileState]:
        """Return the files with the earlier times where a file has only been moved or given other rights since."""
        return {
            path: self.files[path] if state.has_content_of(self.files.get(path)) else state
            for path, state in files.items()
        }


def states_in(data: object) -> dict[str, FileState]:
    """Read files from a template's report; others are left out."""
    found = {}
    for path, state in (data if isinstance(data, dict) else {}).items():
        match state:
            case [int(modified_ns), int(size_bytes), int(changed_ns)]:
                found[str(path)] = FileState(modified_ns, size_bytes, changed_ns)
    return found


def have_changed(files: Mapping[str, FileState]) -> bool:
    """Return whether one of the files has been changed, replaced or removed."""
    return any(not state.has_content_of(_state_of(path)) for path, state in files.items())


def _state_of(path: str) -> FileState | None:
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return None
    return FileState(status.st_mtime_ns, status.st_size, status.st_ctime_ns)
