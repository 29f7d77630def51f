"""The supervisor's folder: its lock, what it learned, what it shows to other processes, its journals."""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from orchestrator.errors import AlreadySupervisedError
from orchestrator.journal import Journal, read_journal

LOCK_ATTEMPTS: Final = 40
LOCK_RETRY_SECONDS: Final = 0.05

_VERSION: Final = 1


class StateDir:
    """The folder and its files. Any process may read; only the one that holds the lock writes."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.lock_path = self.path / "supervisor.lock"
        self._snapshot_path = self.path / "supervisor.json"
        self._learned_path = self.path / "state.json"
        self._decisions_path = self.path / "decisions.jsonl"
        self._deaths_path = self.path / "deaths.jsonl"
        self.decisions = Journal(self._decisions_path)
        self.deaths = Journal(self._deaths_path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock; it is let go with the process, however that ends.

        Raises `AlreadySupervisedError`. Workers look at the lock for a moment now and then: hence a few attempts.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(self.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            for _ in range(LOCK_ATTEMPTS):
                if _try_lock(lock, fcntl.LOCK_EX):
                    break
                time.sleep(LOCK_RETRY_SECONDS)
            else:
                raise AlreadySupervisedError(
                    f"another supervisor works with {self.path}: stop it, or give this one its own supervisor.state_dir"
                )
            yield
        finally:
            os.close(lock)

    def is_supervised(self) -> bool:
        """Whether a living supervisor holds the lock."""
        try:
            lock = os.open(self.lock_path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(lock, fcntl.LOCK_SH)
        finally:
            os.close(lock)

    def write_snapshot(self, snapshot: Mapping[str, object]) -> None:
        """Show the supervisor's view of its fleet; readers see the old one or the new one."""
        _write(self._snapshot_path, snapshot)

    def read_snapshot(self) -> dict[str, object] | None:
        """What was shown last; None when there is nothing, or nothing that can be read."""
        return _read(self._snapshot_path)

    def write_learned(self, pools: Mapping[str, object]) -> None:
        """Keep what was learned of each pool."""
        _write(self._learned_path, {"version": _VERSION, "pools": pools})

    def read_learned(self) -> dict[str, object]:
        """What was kept per pool; nothing when there was nothing yet.

        Raises `ValueError` when the file can't be read as what it should be.
        """
        if not self._learned_path.exists():
            return {}
        learned = _read(self._learned_path)
        if learned is None or learned.get("version") != _VERSION or not isinstance(learned.get("pools"), dict):
            raise ValueError(f"{self._learned_path} is not a state of version {_VERSION}")
        pools = learned["pools"]
        return dict(pools) if isinstance(pools, dict) else {}

    def read_decisions(self, *, limit: int) -> list[dict[str, object]]:
        """The newest decisions, newest first."""
        return read_journal(self._decisions_path, limit=limit)

    def read_deaths(self, *, limit: int) -> list[dict[str, object]]:
        """The newest deaths, newest first."""
        return read_journal(self._deaths_path, limit=limit)


def _try_lock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(path: Path, data: Mapping[str, object]) -> None:
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(json.dumps(data, separators=(",", ":"), default=str), encoding="utf-8")
    draft.replace(path)


def _read(path: Path) -> dict[str, object] | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None
