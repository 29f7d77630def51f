"""Settings of a worker process, read from the environment that its supervisor or a person set."""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeVar

from queue_core.errors import InvalidSettingError
from queue_core.process.wording import counted, shown_bytes
from queue_core.task import ANY, UNTAGGED, TagFilter


@dataclass(frozen=True, slots=True)
class RecycleLimits:
    """Limits after which a worker is recycled; None: no limit. They are checked between tasks, never within one."""

    tasks: int | None = None
    memory_bytes: int | None = None
    age_seconds: float | None = None


def recycle_reason(bounds: RecycleLimits, *, tasks: int, memory_bytes: int, age_seconds: float) -> str | None:
    """Return a sentence that names the limit reached, or None."""
    if bounds.tasks is not None and tasks >= bounds.tasks:
        return f"{counted(tasks, 'task')} done, at most {bounds.tasks:,}"
    if bounds.age_seconds is not None and age_seconds >= bounds.age_seconds:
        return f"{age_seconds:.1f} s old, at most {bounds.age_seconds:g} s"
    if bounds.memory_bytes is not None and memory_bytes >= bounds.memory_bytes:
        return f"{shown_bytes(memory_bytes)} of memory, at most {shown_bytes(bounds.memory_bytes)}"
    return None


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    import psutil  # only a worker with a memory bound pays for the import

    return int(psutil.Process().memory_info().rss)


Value = TypeVar("Value")

MAX_CONCURRENCY: Final = 1000
DEFAULT_URL: Final = "http://127.0.0.1:7878"
MAX_HOST_CHARACTERS: Final = 64
"""Characters of the host's name in a worker's identity."""


def _fresh_identity() -> str:
    return f"worker-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of one worker process.

    Args:
        app: the `App` as `module:attribute`; `app_folder` is searched after the working directory.
        worker: the worker's identity, new at each start.
        url: the server or store; `token` is the bearer token for a server, `durability` applies to a store.
        queue: the queue to serve; "": the only queue the app has handlers for.
        concurrency: tasks (or batches) handled at a time, in [1, 1000].
        grace_seconds: time from the start of a drain until unfinished tasks are released.
        supervisor_lock: file that a living supervisor keeps locked; None: run without a supervisor.
        orphan_grace_seconds: time without a supervisor after which the worker drains.
        unreachable_seconds: time without a reply from the queue after which the worker ends.
        wait_seconds: longest single wait for tasks, where a wait can be interrupted.
        is_forked: it was forked from a template, with which it shares memory.
    """

    app: str
    app_folder: Path | None = None
    worker: str = field(default_factory=_fresh_identity)
    pool: str = ""
    url: str = field(default=DEFAULT_URL, repr=False)
    token: str | None = field(default=None, repr=False)
    durability: Literal["strict", "relaxed"] = "strict"
    queue: str = ""
    tags: TagFilter = ANY
    concurrency: int = 1
    grace_seconds: float = 30.0
    recycle: RecycleLimits = field(default_factory=RecycleLimits)
    supervisor_lock: Path | None = None
    orphan_grace_seconds: float = 60.0
    unreachable_seconds: float = 300.0
    wait_seconds: float = 20.0
    is_forked: bool = False

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str], *, identity: Callable[[], str] = _fresh_identity
    ) -> "WorkerSettings":
        """Read the `TOWLINE_...` variables; one that is missing or empty leaves the default.

        Args:
            identity: generates the worker's identity when `TOWLINE_WORKER` is not set. With `TOWLINE_POOL` it becomes
                `POOL/HOST.IDENTITY`, by which a supervisor recognizes the workers of an external pool.

        Raises `InvalidSettingError` that names all variables that can't be read.
        """
        read = _Reader(environment)
        lock = read.text("TOWLINE_SUPERVISOR_LOCK")
        folder = read.text("TOWLINE_APP_FOLDER")
        settings = cls(
            app=read.text("TOWLINE_APP"),
            app_folder=Path(folder) if folder else None,
            worker=read.text("TOWLINE_WORKER") or _named(read, identity()),
            pool=read.text("TOWLINE_POOL"),
            url=read.text("TOWLINE_URL") or read.secret("TOWLINE_URL_FILE") or DEFAULT_URL,
            token=read.text("TOWLINE_TOKEN") or read.secret("TOWLINE_TOKEN_FILE"),
            durability=read.durability("TOWLINE_DURABILITY"),
            queue=read.text("TOWLINE_QUEUE"),
            tags=read.tags("TOWLINE_TAGS"),
            concurrency=read.count("TOWLINE_CONCURRENCY", default=1, most=MAX_CONCURRENCY),
            grace_seconds=read.seconds("TOWLINE_GRACE_SECONDS", default=30.0),
            recycle=read.recycle("TOWLINE_RECYCLE"),
            supervisor_lock=Path(lock) if lock else None,
            orphan_grace_seconds=read.seconds("TOWLINE_ORPHAN_GRACE_SECONDS", default=60.0),
            is_forked=bool(read.text("TOWLINE_FORKED")),
        )
        if read.messages:
            raise InvalidSettingError("; ".join(read.messages))
        return settings


def _named(read: "_Reader", identity: str) -> str:
    """Return the identity of a worker without a name of its own, with its pool and host where these are set."""
    pool, host = read.text("TOWLINE_POOL"), read.text("HOSTNAME")[:MAX_HOST_CHARACTERS]
    return f"{pool}/{host}{'.' if host else ''}{identity}" if pool else identity


class _Reader:
    """A reader of variables that collects a message for each invalid one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.messages: list[str] = []

    def text(self, name: str) -> str:
        return self._environment.get(name, "").strip()

    def secret(self, name: str) -> str | None:
        """Return the content of the file that a variable names."""
        path = self.text(name)
        if not path:
            return None
        try:
            return Path(path).read_text(encoding="utf-8").strip() or None
        except (OSError, UnicodeDecodeError) as error:
            self.messages.append(f"{name} must name a file that can be read: {path}: {error}")
            return None

    def count(self, name: str, *, default: int, most: int) -> int:
        text = self.text(name)
        if not text:
            return default
        if text.isascii() and text.isdigit() and 1 <= int(text) <= most:
            return int(text)
        return self._wrong(name, text, f"a whole number in [1, {most}]", default)

    def seconds(self, name: str, *, default: float) -> float:
        text = self.text(name)
        if not text:
            return default
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        return seconds if 0 <= seconds < float("inf") else self._wrong(name, text, "seconds, 0 or more", default)

    def durability(self, name: str) -> Literal["strict", "relaxed"]:
        text = self.text(name)
        if text in ("strict", ""):
            return "strict"
        return "relaxed" if text == "relaxed" else self._wrong(name, text, "strict or relaxed", "strict")

    def tags(self, name: str) -> TagFilter:
        text = self.text(name)
        if not text:
            return ANY
        value = UNTAGGED.kind if text == UNTAGGED.kind else _json(text)
        if value == UNTAGGED.kind:
            return UNTAGGED
        if isinstance(value, list) and all(isinstance(tag, str) and tag for tag in value):
            return TagFilter.of(*value) if value else ANY
        return self._wrong(name, text, 'a JSON list of tags such as ["resize"], or "untagged"', ANY)

    def recycle(self, name: str) -> RecycleLimits:
        text = self.text(name)
        if not text:
            return RecycleLimits()
        wanted = "a JSON object of tasks, memory_bytes and age_seconds, each above 0 or null"
        value = _json(text)
        if not isinstance(value, dict) or not value.keys() <= {"tasks", "memory_bytes", "age_seconds"}:
            return self._wrong(name, text, wanted, RecycleLimits())
        tasks, memory_bytes, age_seconds = (value.get(key) for key in ("tasks", "memory_bytes", "age_seconds"))
        if _is_positive(tasks, int) and _is_positive(memory_bytes, int) and _is_positive(age_seconds, (int, float)):
            return RecycleLimits(tasks, memory_bytes, age_seconds)
        return self._wrong(name, text, wanted, RecycleLimits())

    def _wrong(self, name: str, text: str, wanted: str, default: Value) -> Value:
        self.messages.append(f"{name} must be {wanted}: {text[:100]!r}")
        return default


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _is_positive(value: object, kinds: type[int] | tuple[type[int], type[float]]) -> bool:
    return value is None or (isinstance(value, kinds) and not isinstance(value, bool) and value > 0)
