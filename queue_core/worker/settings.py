"""What a worker process is told by its supervisor, or by whoever starts it by hand: text in, one value out."""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeVar

from queue_core.errors import InvalidSettingError
from queue_core.task import ANY, UNTAGGED, TagFilter


@dataclass(frozen=True, slots=True)
class RecycleLimits:
    """Bounds of one worker's life; None: no bound. They are looked at between tasks, never within one."""

    tasks: int | None = None
    memory_bytes: int | None = None
    age_seconds: float | None = None


def recycle_reason(bounds: RecycleLimits, *, tasks: int, memory_bytes: int, age_seconds: float) -> str | None:
    """Which bound is reached, in words, or None."""
    if bounds.tasks is not None and tasks >= bounds.tasks:
        return f"{tasks} tasks done, at most {bounds.tasks}"
    if bounds.age_seconds is not None and age_seconds >= bounds.age_seconds:
        return f"{age_seconds:.1f} s old, at most {bounds.age_seconds:g} s"
    if bounds.memory_bytes is not None and memory_bytes >= bounds.memory_bytes:
        return f"{memory_bytes} bytes resident, at most {bounds.memory_bytes}"
    return None


def resident_bytes() -> int:
    """Resident memory of this process."""
    import psutil  # only a worker with a memory bound pays for the import

    return int(psutil.Process().memory_info().rss)


Value = TypeVar("Value")

MAX_CONCURRENCY: Final = 1000
DEFAULT_URL: Final = "http://127.0.0.1:7878"
MAX_HOST_CHARACTERS: Final = 64


def _fresh_identity() -> str:
    return f"worker-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """One worker process.

    Args:
        app: where its handlers are, as `module:attribute`; `app_folder` is looked in after the working directory.
        worker: its identity, fresh at each start.
        url: the server or the store; `token` is the bearer token for a server that asks for one, `durability` that of
            a store.
        queue: what it serves; "": the only queue the app has handlers for.
        concurrency: tasks (or batches) it holds at a time, in [1, 1000].
        grace_seconds: from being asked to finish until what still runs is given back.
        supervisor_lock: file that a living supervisor keeps locked; None: nobody is missed.
        orphan_grace_seconds: how long the supervisor may be away.
        unreachable_seconds: how long the queue may be out of reach before the worker gives up.
        wait_seconds: longest single wait for work, where a wait can be cut short.
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

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str], *, identity: Callable[[], str] = _fresh_identity
    ) -> "WorkerSettings":
        """Read the `TOWLINE_...` variables; one that is missing or empty leaves the default.

        Args:
            identity: makes the worker's identity when `TOWLINE_WORKER` does not give one. With `TOWLINE_POOL` that
                becomes `POOL/HOST.IDENTITY`: so a supervisor knows the workers of a pool that others start.

        Raises `InvalidSettingError` naming every variable that can't be read, all at once.
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
        )
        if read.mistakes:
            raise InvalidSettingError("; ".join(read.mistakes))
        return settings


def _named(read: "_Reader", identity: str) -> str:
    """A worker that nobody named: as one of its pool, and of its host, where these are told."""
    pool, host = read.text("TOWLINE_POOL"), read.text("HOSTNAME")[:MAX_HOST_CHARACTERS]
    return f"{pool}/{host}{'.' if host else ''}{identity}" if pool else identity


class _Reader:
    """Reads variables one by one and notes what is wrong with them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.mistakes: list[str] = []

    def text(self, name: str) -> str:
        return self._environment.get(name, "").strip()

    def secret(self, name: str) -> str | None:
        """What is in the file that a variable names."""
        path = self.text(name)
        if not path:
            return None
        try:
            return Path(path).read_text(encoding="utf-8").strip() or None
        except (OSError, UnicodeDecodeError) as error:
            self.mistakes.append(f"{name} must name a file that can be read: {path}: {error}")
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
        self.mistakes.append(f"{name} must be {wanted}: {text[:100]!r}")
        return default


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _is_positive(value: object, kinds: type[int] | tuple[type[int], type[float]]) -> bool:
    return value is None or (isinstance(value, kinds) and not isinstance(value, bool) and value > 0)
