"""What a program gives in the wrong type is refused in words, as not every program has a type checker."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from queue_core.api import QueueApi
from queue_core.connect import open_queue
from queue_core.errors import InvalidRequestError
from queue_core.server.options import ServeOptions
from queue_core.server.run import ServerThread
from queue_core.store import Deletion
from queue_core.stores.memory import MemoryStore
from queue_core.task import NewTask


@pytest.fixture(params=["memory", "sqlite", "server"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QueueApi]:
    if request.param == "server":
        thread = ServerThread(MemoryStore(), ServeOptions(port=0))
        try:
            with closing(open_queue(thread.start(), "work")) as queue:
                yield queue
        finally:
            thread.stop()
        return
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'queue.db'}"
    with closing(open_queue(url, "work")) as queue:
        yield queue


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        pytest.param("text", r"of type str; encode it: text\.encode\(\)", id="text"),
        pytest.param(["text"], r"at 0 is one of type str; NewTask\(payload\)", id="a list of texts"),
        pytest.param([NewTask(), b"x"], r"at 1 is one of type bytes", id="a list of bytes"),
        pytest.param(None, "of type NoneType", id="nothing"),
        pytest.param(7, "of type int", id="a number"),
        pytest.param(NewTask("text"), r"payload must be bytes: str given; encode it", id="a payload of text"),  # type: ignore[arg-type]
        pytest.param(NewTask(bytearray(b"x")), r"bytearray given; bytes\(payload\)", id="a payload that may change"),  # type: ignore[arg-type]
        pytest.param(NewTask(tag=5), "tag must be text: 5", id="a tag"),  # type: ignore[arg-type]
        pytest.param(NewTask(name=5), "name must be text: 5", id="a name"),  # type: ignore[arg-type]
        pytest.param(NewTask(queue=b"q"), "queue must be text: b'q'", id="a queue"),  # type: ignore[arg-type]
        pytest.param(NewTask(eta=1.5), "eta must be whole microseconds since 1970: 1.5", id="an eta"),  # type: ignore[arg-type]
        pytest.param(NewTask(max_leases="2"), "max_leases must be a whole number: '2'", id="a bound"),  # type: ignore[arg-type]
        pytest.param(NewTask(delay_seconds="1"), "delay_seconds must be a number: '1'", id="a delay"),  # type: ignore[arg-type]
    ],
)
def test_an_add(queue: QueueApi, tasks: Any, told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        queue.add(tasks)
    assert queue.stats().added_total == 0


@pytest.mark.parametrize("leases", [None, 7, b"1.2", [None], [7], [b"1.2"]])
@pytest.mark.parametrize("verb", ["renew", "release", "delete"])
def test_a_lease(queue: QueueApi, verb: str, leases: Any) -> None:
    with pytest.raises(InvalidRequestError, match="a Lease, its token or a list of these is needed: of type"):
        getattr(queue, verb)(leases)


@pytest.mark.parametrize("verb", ["lease", "peek", "purge", "stats"])
def test_a_filter(queue: QueueApi, verb: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"must be a TagFilter, such as TagFilter.of\('resize'\): 'resize'"):
        getattr(queue, verb)(tags="resize")


def test_what_a_deletion_hands_over(queue: QueueApi) -> None:
    queue.add(b"x")
    (lease,) = queue.lease()
    wrong: Any = "text"
    with pytest.raises(InvalidRequestError, match="payload must be bytes: str given"):
        queue.exchange([Deletion(lease.token, (NewTask(wrong),))])
    assert queue.stats().in_flight == 1
