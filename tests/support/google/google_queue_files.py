"""Google's own readers of queue.yaml and queue.xml, to compare with ours."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import pytest


@dataclass(frozen=True, slots=True)
class Read:
    """A file as Google's reader understands it, in our terms."""

    pull: tuple[tuple[str, int | None, tuple[str, ...], tuple[str, ...]], ...]
    push: tuple[str, ...]
    total_storage_limit_bytes: int | None
    resume_paused_queues: bool


class GoogleQueueFiles:
    """`queueinfo` and `queue_xml_parser` of appengine-python-standard."""

    def __init__(self, queueinfo: ModuleType, xml_parser: ModuleType) -> None:
        self._queueinfo = queueinfo
        self._xml_parser = xml_parser

    def yaml(self, text: str) -> Read | None:
        """Return what it reads; None when it refuses the file."""
        with quiet():
            try:
                info = self._queueinfo.LoadSingleQueue(text)
            except Exception:  # noqa: BLE001  its errors have no common class but this
                return None
            return self._read(info)

    def yaml_of_xml(self, text: str) -> str | None:
        """Return the queue.yaml it makes from a queue.xml; None when it refuses the file."""
        with quiet():
            try:
                return str(self._xml_parser.GetQueueYaml(None, text))
            except Exception:  # noqa: BLE001
                return None

    def _read(self, info: ModuleType) -> Read:
        queues = info.queue or []
        limit = info.total_storage_limit
        try:
            size = self._queueinfo.ParseTotalStorageLimit(limit) if limit is not None else None
        except (self._queueinfo.MalformedQueueConfiguration, OverflowError):
            size = -1
        return Read(
            tuple(
                (
                    queue.name,
                    queue.retry_parameters.task_retry_limit if queue.retry_parameters else None,
                    _unique(entry.user_email for entry in queue.acl or []),
                    _unique(entry.writer_email for entry in queue.acl or []),
                )
                for queue in queues
                if queue.mode == "pull"
            ),
            tuple(queue.name for queue in queues if queue.mode != "pull"),
            size,
            info.resume_paused_queues != "False",
        )


def google_queue_files() -> GoogleQueueFiles:
    """Return the readers; skip the test where appengine-python-standard is not installed."""
    with quiet():
        queueinfo = pytest.importorskip("google.appengine.api.queueinfo", exc_type=ImportError)
        xml_parser = pytest.importorskip("google.appengine.tools.queue_xml_parser", exc_type=ImportError)
    return GoogleQueueFiles(queueinfo, xml_parser)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings of its libraries, which would fail the suite."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _unique(emails: Iterator[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(email for email in emails if email is not None))
