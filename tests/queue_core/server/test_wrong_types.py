"""What a program gives in the wrong type is refused in words, as not every program has a type checker."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from queue_core.client.connect import open_queue
from queue_core.client.queue import Queue
from queue_core.errors import InvalidRequestError
from queue_core.server.base.options import ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, TagFilter
from queue_core.verbs import Deletion


@pytest.fixture(params=["memory", "sqlite", "server"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Queue]:
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
        pytest.param(["text"], r"item 0 is of type str; NewTask\(payload\)", id="a list of texts"),
        pytest.param([NewTask(), b"x"], r"item 1 is of type bytes", id="a list of bytes"),
        pytest.param(None, "of type NoneType", id="nothing"),
        pytest.param(7, "of type int", id="a number"),
        pytest.param(NewTask("text"), r"payload must be bytes: str given; encode it", id="a payload of text"),  # type: ignore[arg-type]
        pytest.param(NewTask(bytearray(b"x")), r"bytearray given; bytes\(payload\)", id="a payload that may change"),  # type: ignore[arg-type]
        pytest.param(NewTask(tag=5), "tag must be text: 5", id="a tag"),  # type: ignore[arg-type]
        pytest.param(NewTask(name=5), "name must be text: 5", id="a name"),  # type: ignore[arg-type]
        pytest.param(NewTask(queue=b"q"), "queue must be text: b'q'", id="a queue"),  # type: ignore[arg-type]
        pytest.param(NewTask(eta=1.5), r"eta must be whole microseconds since 1970, in \[0, \d+\]: 1\.5", id="an eta"),  # type: ignore[arg-type]
        pytest.param(
            NewTask(max_leases="2"), r"max_leases must be a whole number in \[1, 2147483647\]: '2'", id="a bound"
        ),  # type: ignore[arg-type]
        pytest.param(NewTask(delay_seconds="1"), r"delay must be a number in \[0, 2592000\] s: '1'", id="a delay"),  # type: ignore[arg-type]
    ],
)
def test_an_add(queue: Queue, tasks: Any, told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        queue.add(tasks)
    assert queue.stats().added_total == 0


@pytest.mark.parametrize("leases", [None, 7, b"1.2", [None], [7], [b"1.2"]])
@pytest.mark.parametrize("verb", ["renew", "release", "delete"])
def test_a_lease(queue: Queue, verb: str, leases: Any) -> None:
    with pytest.raises(InvalidRequestError, match="give a Lease, its token or a list of these: of type"):
        getattr(queue, verb)(leases)


@pytest.mark.parametrize("verb", ["lease", "peek", "purge", "stats"])
def test_a_filter(queue: Queue, verb: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"must be a TagFilter, such as TagFilter.of\('resize'\): 'resize'"):
        getattr(queue, verb)(tags="resize")


@pytest.mark.parametrize(
    ("verb", "given", "told"),
    [
        ("lease", {"count": "1"}, "'1'|/count: Input should be a valid integer"),
        ("lease", {"count": 1.5}, r"1\.5|/count: Input should be a valid integer"),
        ("lease", {"seconds": "5"}, "must be a number in .*: '5'|/seconds: Input should be a valid number"),
        ("lease", {"wait_seconds": "5"}, "waiting time must be a number in .*: '5'"),
        ("lease", {"wait_seconds": float("nan")}, "waiting time must be a number in .*: nan"),
        ("lease", {"worker": 7}, "worker must be text: 7|/worker: Input should be a valid string"),
        ("lease", {"tags": TagFilter("tags", (5,))}, "tag must be text: 5|/tags/0: Input should be a valid string"),  # type: ignore[arg-type]
        ("peek", {"limit": "5"}, "limit must be a whole number in .*: '5'|/limit: Input should be a valid integer"),
        ("peek", {"after": "5"}, "after must be a whole number in .*: '5'|/after: Input should be a valid integer"),
        (
            "peek",
            {"payload_bytes": -1},
            "payload_bytes must be a whole number in .*: -1|/payload_bytes: .* greater than",
        ),
        ("peek", {"names": 7}, "give a task's name or a list of names: 7"),
        ("peek", {"names": [b"n"]}, "give a task's name or a list of names: b'n'"),
        ("peek", {"states": "ready"}, "states must be a set of TaskState.*: 'ready'"),
        ("peek", {"states": None}, "states must be a set of TaskState.*: None"),
        ("tag_stats", {"limit": "5"}, "limit must be a whole number in .*: '5'"),
        ("tag_stats", {"after": 5}, "tag must be text: 5"),
        ("purge", {"dead": "all"}, "dead must be 'keep' or 'only': 'all'|/dead: Input should be 'keep' or 'only'"),
        ("delete_by_name", {"names": 7}, "give a task's name or a list of names: 7"),
        ("redrive", {"names": [None]}, "give a task's name or a list of names: None"),
    ],
)
def test_what_goes_with_a_verb(queue: Queue, verb: str, given: dict[str, Any], told: str) -> None:
    queue.add(b"x")
    with pytest.raises(InvalidRequestError, match=told):
        getattr(queue, verb)(**given)
    assert (queue.stats().ready, queue.stats().in_flight) == (1, 0)


@pytest.mark.parametrize(
    ("verb", "given", "told"),
    [
        ("renew", {"seconds": "5"}, "lease time must be a number in .*: '5'|/seconds: Input should be a valid number"),
        ("release", {"delay_seconds": "5"}, "delay must be a number in .*: '5'|/delay_seconds: .* a valid number"),
        ("release", {"charge": "free"}, "charge must be 'counted' or 'uncounted': 'free'|/charge: Input should be"),
        ("release", {"dead_reason": 7}, "dead_reason must be text: 7|/dead_reason: Input should be a valid string"),
    ],
)
def test_what_goes_with_a_lease(queue: Queue, verb: str, given: dict[str, Any], told: str) -> None:
    queue.add(b"x")
    leases = queue.lease()
    with pytest.raises(InvalidRequestError, match=told):
        getattr(queue, verb)(leases, **given)
    assert queue.stats().in_flight == 1


def test_the_name_of_a_queue() -> None:
    wrong: Any = 5
    with pytest.raises(InvalidRequestError, match="queue name must be 1 to 100 letters, digits or '-': 5"):
        open_queue("memory:", wrong)


def test_one_name_is_not_looked_for_letter_by_letter(queue: Queue) -> None:
    queue.add([NewTask(name="ab"), NewTask(name="a")])
    one: Any = "ab"
    assert [task.name for task in queue.peek(names=one).tasks] == ["ab"]


def test_what_a_deletion_hands_over(queue: Queue) -> None:
    queue.add(b"x")
    (lease,) = queue.lease()
    wrong: Any = "text"
    with pytest.raises(InvalidRequestError, match="payload must be bytes: str given"):
        queue.exchange([Deletion(lease.token, (NewTask(wrong),))])
    assert queue.stats().in_flight == 1
