"""The supervisor's folder: its lock, what it learned, what it shows to other processes, its journals."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from orchestrator.config import overrides
from orchestrator.config.overrides import HostOverride, Overrides
from orchestrator.errors import AlreadySupervisedError
from orchestrator.private_files import make_folder, opener
from orchestrator.state.journal import Journal, amended, read_journal

LOCK_ATTEMPTS: Final = 40
LOCK_RETRY_SECONDS: Final = 0.05

MAX_REPLAY_BYTES: Final = 8 * 1024 * 1024
"""Of each of the two files with all inputs of decisions: some thousand of small pools, some hundred of large ones."""

_VERSION: Final = 1


class StateDir:
    """The folder and its files. Any process may read; only the one that holds the lock writes, but for the orders:
    these anybody may give."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.lock_path = self.path / "supervisor.lock"
        self._snapshot_path = self.path / "supervisor.json"
        self._learned_path = self.path / "state.json"
        self._decisions_path = self.path / "decisions.jsonl"
        self._deaths_path = self.path / "deaths.jsonl"
        self._replays_path = self.path / "replays.jsonl"
        self._usage_path = self.path / "usage.json"
        self._orders_path = self.path / "orders.json"
        self._orders_lock_path = self.path / "orders.lock"
        self._host_path = self.path / "host.json"
        self._reload_path = self.path / "reload.json"
        self._reloaded_path = self.path / "reloaded.json"
        self.decisions = Journal(self._decisions_path)
        self.replays = Journal(self._replays_path, max_bytes=MAX_REPLAY_BYTES)
        self.deaths = Journal(self._deaths_path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock; it is let go with the process, however that ends.

        Raises `AlreadySupervisedError`. Workers look at the lock for a moment now and then: hence a few attempts.
        """
        make_folder(self.path)
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

    def write_usage(self, usage: Mapping[str, object]) -> None:
        """Keep what pools have used, and what their workers take."""
        _write(self._usage_path, {"version": _VERSION, **usage})

    def read_usage(self) -> dict[str, object]:
        """What was kept of it; nothing when there is nothing that can be read."""
        usage = _read(self._usage_path)
        return usage if usage is not None and usage.get("version") == _VERSION else {}

    def orders_mark(self) -> tuple[int, int, int] | None:
        """Another one after every change of the orders; None when none were given."""
        return _mark(self._orders_path)

    def host_mark(self) -> tuple[int, int, int] | None:
        """Another one after every change of what is asked of the host; None when nothing was."""
        return _mark(self._host_path)

    def read_host_order(self) -> HostOverride:
        """What is asked of the whole host. Raises as `read_orders` does."""
        return (
            HostOverride.from_json(_read_certainly(self._host_path))
            if self._host_path.exists()
            else overrides.NOT_DRAINED
        )

    def order_host(self, order: HostOverride) -> None:
        """Ask something else of the host. Raises `OSError`."""
        make_folder(self.path)
        _write(self._host_path, order.to_json())

    def read_orders(self) -> dict[str, Overrides]:
        """What was asked of pools, over or not.

        Raises `ValueError` when the file is not what it should be, `OSError` when it can't be read now.
        """
        if not self._orders_path.exists():
            return {}
        return overrides.overrides_from_json(_read_certainly(self._orders_path))

    def change_orders(self, pool: str, change: Callable[[Overrides], Overrides]) -> Overrides:
        """Give other orders to one pool; what others ask at the same time is not lost. Returns what is asked now.

        An unreadable file is replaced. Raises `OSError`.
        """
        make_folder(self.path)
        lock = os.open(self._orders_lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                known = self.read_orders()
            except ValueError:
                known = {}
            known[pool] = change(known.get(pool, overrides.NO_OVERRIDES))
            _write(self._orders_path, overrides.overrides_to_json(known))
            return known[pool]
        finally:
            os.close(lock)

    def ask_reload(self, request: str) -> None:
        """Ask the supervisor to read its settings again; `request` names this asking. Raises `OSError`."""
        _write(self._reload_path, {"request": request})

    def reload_asked(self) -> str | None:
        """The name of the last asking, if there was one."""
        asked = (_read(self._reload_path) or {}).get("request") if self._reload_path.exists() else None
        return asked if isinstance(asked, str) else None

    def answer_reload(self, answer: Mapping[str, object]) -> None:
        """Tell what became of the last reload, whoever asked for it."""
        _write(self._reloaded_path, answer)

    def reload_answer(self) -> dict[str, object]:
        """What became of it; nothing when there was none yet."""
        return _read(self._reloaded_path) or {}

    def read_replays(self, *, limit: int) -> list[dict[str, object]]:
        """All that the newest decisions were made from, newest first (see `replay.replayed`)."""
        return read_journal(self._replays_path, limit=limit)

    def read_decisions(self, *, limit: int) -> list[dict[str, object]]:
        """The newest decisions, newest first."""
        return read_journal(self._decisions_path, limit=limit)

    def read_deaths(self, *, limit: int) -> list[dict[str, object]]:
        """The newest deaths, newest first."""
        return amended(read_journal(self._deaths_path, limit=2 * limit))[:limit]


def _try_lock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _write(path: Path, data: Mapping[str, object]) -> None:
    draft = path.with_name(f".{path.name}.draft")
    with open(draft, "w", encoding="utf-8", opener=opener) as file:
        file.write(json.dumps(data, separators=(",", ":"), default=str))
    draft.replace(path)


def _read_certainly(path: Path) -> object:
    """What lies there; None where that is no JSON. Raises `OSError` where nobody can tell."""
    text = path.read_bytes()
    try:
        return json.loads(text)
    except ValueError:
        return None


def _read(path: Path) -> dict[str, object] | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None
