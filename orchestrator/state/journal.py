"""Journals for people: one line of JSON per decision or death, in files of bounded size."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Final

from orchestrator.base import events
from queue_core.log import get_logger
from queue_core.process.private_files import opener

log = get_logger()

MAX_JOURNAL_BYTES: Final = 2 * 1024 * 1024
"""Size at which a journal is rotated; two such files are kept."""


class WriteErrors:
    """Logs once that a path can't be written to, and once that it can be again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_failing = False

    @contextmanager
    def logged(self) -> Iterator[None]:
        """Run the body, a write; its `OSError` is logged and not raised."""
        try:
            yield
        except OSError as error:
            if not self._is_failing:
                log.warning(events.STATE_NOT_WRITTEN, path=str(self._path), error=error.strerror)
            self._is_failing = True
        else:
            if self._is_failing:
                log.info(events.STATE_RECOVERED, path=str(self._path))
            self._is_failing = False


class Journal:
    """A file of JSON lines. At `max_bytes` it replaces `NAME.1`, and a new one begins."""

    def __init__(
        self, path: Path, *, max_bytes: int = MAX_JOURNAL_BYTES, check: Callable[[], None] = lambda: None
    ) -> None:
        """`check` is called before a line is added; its `OSError` is one of writing."""
        self._check = check
        self._path = path
        self._max_bytes = max_bytes
        self._errors = WriteErrors(path)
        self._is_torn: bool | None = None

    def append(self, record: Mapping[str, object]) -> None:
        """Add one line. It survives a crash of this process, not of the host.

        A full disk costs lines, never a decision: it is logged once, until a line fits again.
        """
        line = json.dumps(record, separators=(",", ":"), default=str) + "\n"
        is_torn, self._is_torn = self._is_torn, None
        with self._errors.logged():
            self._check()
            with open(self._path, "a", encoding="utf-8", opener=opener) as file:
                if is_torn is None:
                    is_torn = _is_torn(self._path)
                is_full = file.tell() >= self._max_bytes
                file.write("\n" + line if is_torn else line)
            if is_full:
                self._path.replace(_older(self._path))
            self._is_torn = False


Keep = Callable[[dict[str, object]], bool]
"""Tells which records are wanted."""


def read_journal(
    path: Path, *, limit: int, keep: Keep = lambda _record: True, text: str = ""
) -> list[dict[str, object]]:
    """Return the newest `limit` records that are to `keep`, newest first; a line that a crash cut is skipped.

    `text`: part of every wanted line, as `Journal.append` writes it (see `member_text`): no other line is parsed,
    which takes most of the time.
    """
    newest_first = chain.from_iterable(_lines(p, text.encode()) for p in (path, _older(path)))
    return list(islice((r for line in newest_first if (r := _record(line)) is not None and keep(r)), limit))


def member_text(name: str, value: str) -> str:
    """Return a member as it is written in the lines of a journal."""
    return json.dumps({name: value}, separators=(",", ":"))[1:-1]


def amended(records: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Merge amendments into the records of workers they amend; both newest first."""
    later: dict[object, dict[str, object]] = {}
    whole = []
    for record in records:
        if record.get("amends"):
            later.setdefault(record.get("worker"), record)
        else:
            more = later.pop(record.get("worker"), {})
            known = {name: value for name, value in more.items() if name not in {"at", "amends"}}
            whole.append({**record, **known})
    return whole


def _is_torn(path: Path) -> bool:
    """Return whether a crash cut the last line: the next one must begin on a new line."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if not size:
            return False
        file.seek(size - 1)
        return file.read(1) != b"\n"


def _older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def _lines(path: Path, text: bytes) -> Iterator[bytes]:
    """Yield the lines that contain a text, the last one first."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    end = len(data)
    while end > 0:
        place = data.rfind(text, 0, end) if text else end - 1
        if place < 0:
            return
        begin = data.rfind(b"\n", 0, place) + 1
        line_end = data.find(b"\n", place, end)
        yield data[begin : end if line_end < 0 else line_end]
        end = begin - 1 if begin else 0


def _record(line: bytes) -> dict[str, object] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
