"""The supervisor's state directory: its lock, learned state, snapshot, overrides and journals."""

import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from orchestrator.base.errors import AlreadySupervisedError
from orchestrator.config import overrides
from orchestrator.config.overrides import HostOverride, Overrides
from orchestrator.config.worker_requests import NO_WORKER_REQUESTS, WorkerRequests
from orchestrator.state.journal import Journal, Keep, amended, read_journal
from orchestrator.state.private_files import make_folder
from orchestrator.state.templates import TemplateRecord, template_in
from queue_core.process.private_files import opener

LOCK_ATTEMPTS: Final = 40
"""Attempts to take the lock, which a worker may hold for a moment as it checks it."""
LOCK_RETRY_SECONDS: Final = 0.05
"""Pause between two attempts to take the lock."""

MAX_REPLAY_BYTES: Final = 8 * 1024 * 1024
"""Size of each of the two files with decisions' inputs: thousands of decisions of small pools, hundreds of large."""

_VERSION: Final = 1


class StateDir:
    """The folder and its files. Any process may read; only the lock's holder writes, except overrides.

    The holder's state is the folder that it locked, and not whatever has the path later: see `check_own`.
    """

    def __init__(self, path: Path) -> None:
        self._locked: _Inode | None = None
        self._workers_lock: int | None = None
        self._shared_snapshot: tuple[object, Mapping[str, object] | None] | None = None
        self.path = path.resolve()
        self.lock_path = self.path / "supervisor.lock"
        self.workers_lock_path = self.path / "workers.lock"
        self._snapshot_path = self.path / "supervisor.json"
        self._learned_path = self.path / "state.json"
        self._decisions_path = self.path / "decisions.jsonl"
        self._deaths_path = self.path / "deaths.jsonl"
        self._replays_path = self.path / "replays.jsonl"
        self._usage_path = self.path / "usage.json"
        self._templates_path = self.path / "templates.json"
        self._overrides_path = self.path / "orders.json"
        self._overrides_lock_path = self.path / "orders.lock"
        self._worker_requests_path = self.path / "worker_requests.json"
        self._host_path = self.path / "host.json"
        self._worker_token_path = self.path / "worker.token"
        self._reload_path = self.path / "reload.json"
        self._reloaded_path = self.path / "reloaded.json"
        self.decisions = Journal(self._decisions_path, check=self.check_own)
        self.replays = Journal(self._replays_path, max_bytes=MAX_REPLAY_BYTES, check=self.check_own)
        self.deaths = Journal(self._deaths_path, check=self.check_own)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock; the kernel releases it when the process ends.

        Raises `AlreadySupervisedError`. Workers check the lock for a moment now and then, hence a few attempts.
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
            self._locked = _inode_of(os.fstat(lock))  # the open file keeps its number from being another's
            self.hold_workers()
            yield
        finally:
            self._locked = None
            os.close(lock)
            if self._workers_lock is not None:
                os.close(self._workers_lock)
                self._workers_lock = None

    def hold_workers(self) -> None:
        """Hold the lock by which our containers know that they are led, unless another leader of the fleet holds it.

        Raises `OSError`.
        """
        if self._workers_lock is None:
            lock = os.open(self.workers_lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if _try_lock(lock, fcntl.LOCK_EX):
                self._workers_lock = lock
            else:
                os.close(lock)

    def check_own(self) -> None:
        """Raise `OSError` if we hold the lock of a folder that is no longer at this path.

        Its files are gone then, and those at the path may be another supervisor's.
        """
        if self._locked is None:
            return
        try:
            is_own = _inode_of(self.lock_path.stat()) == self._locked
        except FileNotFoundError:
            is_own = False
        if not is_own:
            raise OSError(errno.ESTALE, "the folder was removed or replaced while its supervisor runs; restart it")

    def is_supervised(self) -> bool:
        """Return whether a living supervisor holds the lock."""
        try:
            lock = os.open(self.lock_path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(lock, fcntl.LOCK_SH)
        finally:
            os.close(lock)

    def write_snapshot(self, snapshot: Mapping[str, object]) -> None:
        """Replace the snapshot; readers see the old one or the new one. Raises `OSError`."""
        self.check_own()
        _write(self._snapshot_path, snapshot)

    def read_snapshot(self) -> dict[str, object] | None:
        """Return the last snapshot; None when there is none that can be read."""
        return _read(self._snapshot_path)

    def shared_snapshot(self) -> Mapping[str, object] | None:
        """Return the last snapshot for readers that leave it as it is: it is parsed once for all of them."""
        mark = _mark(self._snapshot_path)
        known = self._shared_snapshot
        if known is None or mark is None or known[0] != mark:
            known = self._shared_snapshot = (mark, self.read_snapshot())
        return known[1]

    def write_learned(self, pools: Mapping[str, object]) -> None:
        """Write each pool's learned state."""
        self.check_own()
        _write(self._learned_path, {"version": _VERSION, "pools": pools})

    def read_learned(self) -> dict[str, object]:
        """Return the stored learned state per pool; empty when there is none.

        Raises `ValueError` for an invalid file.
        """
        if not self._learned_path.exists():
            return {}
        learned = _read(self._learned_path)
        if learned is None or learned.get("version") != _VERSION or not isinstance(learned.get("pools"), dict):
            raise ValueError(f"{self._learned_path} is not a state of version {_VERSION}")
        pools = learned["pools"]
        return dict(pools) if isinstance(pools, dict) else {}

    def write_usage(self, usage: Mapping[str, object]) -> None:
        """Write pools' budgets and their workers' usage."""
        self.check_own()
        _write(self._usage_path, {"version": _VERSION, **usage})

    def read_usage(self) -> dict[str, object]:
        """Return the stored usage; empty when there is none that can be read."""
        usage = _read(self._usage_path)
        return usage if usage is not None and usage.get("version") == _VERSION else {}

    def write_templates(self, templates: Mapping[str, TemplateRecord]) -> None:
        """Write the state of each pool's template. Raises `OSError`."""
        _write(self._templates_path, {pool: record.to_json() for pool, record in templates.items()})

    def read_templates(self) -> dict[str, TemplateRecord]:
        """Return the state of each pool's template; empty without a supervisor, as a template ends with it."""
        if not self.is_supervised():
            return {}
        found = {pool: template_in(data) for pool, data in (_read(self._templates_path) or {}).items()}
        return {pool: record for pool, record in found.items() if record is not None}

    def overrides_mark(self) -> tuple[int, int, int] | None:
        """Return a value that differs after every change of the overrides; None when there are none."""
        return _mark(self._overrides_path)

    def host_mark(self) -> tuple[int, int, int] | None:
        """Return a value that differs after every change of the host's override; None when there is none."""
        return _mark(self._host_path)

    def read_host_override(self) -> HostOverride:
        """Return the host's override. Raises as `read_overrides` does."""
        return (
            HostOverride.from_json(_read_certainly(self._host_path))
            if self._host_path.exists()
            else overrides.NOT_DRAINED
        )

    def is_drained(self) -> bool:
        """Return whether this host is drained. An unreadable override counts as no drain."""
        try:
            return self.read_host_override().drained_at is not None
        except (OSError, ValueError):
            return False

    def write_host_override(self, override: HostOverride) -> None:
        """Replace the host's override. Raises `OSError`."""
        make_folder(self.path)
        _write(self._host_path, override.to_json())

    def read_overrides(self) -> dict[str, Overrides]:
        """Return pools' overrides, also expired ones.

        Raises `ValueError` for an invalid file, `OSError` when it can't be read now.
        """
        if not self._overrides_path.exists():
            return {}
        return overrides.overrides_from_json(_read_certainly(self._overrides_path))

    def change_overrides(self, pool: str, change: Callable[[Overrides], Overrides]) -> Overrides:
        """Change one pool's overrides under a lock, and return them.

        An unreadable file is replaced. Raises `OSError`.
        """
        with self._changing_overrides():
            try:
                known = self.read_overrides()
            except ValueError:
                known = {}
            known[pool] = change(known.get(pool, overrides.NO_OVERRIDES))
            _write(self._overrides_path, overrides.overrides_to_json(known))
            return known[pool]

    def overrides_changed_at(self) -> float:
        """Return when the overrides changed last, in seconds since the epoch; 0 when there are none."""
        mark = self.overrides_mark()
        return 0.0 if mark is None else round(mark[1] / 1e9, 3)

    def replace_overrides(self, known: Mapping[str, Overrides]) -> None:
        """Replace the overrides of all pools. Raises `OSError`."""
        with self._changing_overrides():
            _write(self._overrides_path, overrides.overrides_to_json(known))

    def worker_requests_mark(self) -> tuple[int, int, int] | None:
        """Return a value that differs after every order about workers; None when there are none."""
        return _mark(self._worker_requests_path)

    def read_worker_requests(self) -> WorkerRequests:
        """Return the orders about workers, also those that were heeded. Raises as `read_overrides` does."""
        if not self._worker_requests_path.exists():
            return NO_WORKER_REQUESTS
        return WorkerRequests.from_json(_read_certainly(self._worker_requests_path))

    def change_worker_requests(self, change: Callable[[WorkerRequests], WorkerRequests]) -> None:
        """Change the orders about workers under a lock. An unreadable file is replaced. Raises `OSError`."""
        with self._changing_overrides():
            try:
                known = self.read_worker_requests()
            except ValueError:
                known = NO_WORKER_REQUESTS
            _write(self._worker_requests_path, change(known).to_json())

    @contextmanager
    def _changing_overrides(self) -> Iterator[None]:
        make_folder(self.path)
        lock = os.open(self._overrides_lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def worker_token(self) -> str:
        """Return the token of this folder's workers at their own server, which the folder keeps. Raises `OSError`.

        It is no token of the settings: those are replaced while workers live, and the next supervisor adopts them.
        """
        make_folder(self.path)
        with suppress(FileExistsError), open(self._worker_token_path, "x", encoding="ascii", opener=opener) as file:
            file.write(secrets.token_urlsafe())
        return self._worker_token_path.read_text(encoding="ascii")

    def request_reload(self, request: str) -> None:
        """Ask the supervisor to reload; `request` identifies the request. Raises `OSError`."""
        _write(self._reload_path, {"request": request})

    def reload_request(self) -> str | None:
        """Return the id of the last reload request, if there was one."""
        request_id = (_read(self._reload_path) or {}).get("request") if self._reload_path.exists() else None
        return request_id if isinstance(request_id, str) else None

    def pending_reload(self, *, within_seconds: float, now_seconds: float) -> str | None:
        """Return the id of the last reload request if it has no answer yet and is not older than that."""
        request = self.reload_request()
        if request is None or self.reload_answer().get("request") == request:
            return None
        with suppress(FileNotFoundError):
            if abs(now_seconds - self._reload_path.stat().st_mtime) <= within_seconds:
                return request
        return None

    def write_reload_answer(self, answer: Mapping[str, object]) -> None:
        """Write the result of the last reload, requested or not."""
        self.check_own()
        _write(self._reloaded_path, answer)

    def reload_answer(self) -> dict[str, object]:
        """Return the result of the last reload; empty when there was none."""
        return _read(self._reloaded_path) or {}

    def read_replays(self, *, limit: int, keep: Keep = lambda _record: True, text: str = "") -> list[dict[str, object]]:
        """Return the inputs of the newest decisions that are to `keep`, newest first (see `replay.replayed`).

        `text`: as for `read_journal`.
        """
        return read_journal(self._replays_path, limit=limit, keep=keep, text=text)

    def read_decisions(
        self, *, limit: int, keep: Keep = lambda _record: True, text: str = ""
    ) -> list[dict[str, object]]:
        """Return the newest decisions that are to `keep`, newest first. `text`: as for `read_journal`."""
        return read_journal(self._decisions_path, limit=limit, keep=keep, text=text)

    def read_deaths(self, *, limit: int) -> list[dict[str, object]]:
        """Return the newest death certificates, newest first."""
        return amended(read_journal(self._deaths_path, limit=2 * limit))[:limit]


_Inode = tuple[int, int]


def _inode_of(status: os.stat_result) -> _Inode:
    return status.st_dev, status.st_ino


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
    """Return the file's JSON; None when it is not JSON. Raises `OSError`."""
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
