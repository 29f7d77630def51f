"""What one request takes of the server's loop: its thread's own processor time, whatever else the machine does."""

import json
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from queue_core.server.base.bodies import value_count
from queue_core.server.base.bodies.value_count import MAX_VALUES, check_values
from queue_core.server.base.problems import Problem
from queue_core.server.fast_path import MANY_VALUES
from queue_core.task import NewTask
from tests.support.servers import QUEUE, RunningServer, a_server

MAX_LOOP_SECONDS = 0.05
TRIES = 3
"""The least counts: what a request costs it costs each time."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with a_server() as running:
        yield running


def loop_clock(server: RunningServer) -> int:
    """Return the clock of the processor time of the loop's thread."""
    thread = server.thread._thread.ident
    assert thread is not None
    return time.pthread_getcpuclockid(thread)


def loop_seconds(server: RunningServer, verb: str, body: bytes) -> float:
    """Return the processor time of the loop's thread for a request, at least."""
    clock, found = loop_clock(server), []
    for _ in range(TRIES):
        before = time.clock_gettime(clock)
        assert server.ask("POST", f"/v1/queues/{QUEUE}/{verb}", body).status < 500
        found.append(time.clock_gettime(clock) - before)
    return min(found)


def handed_over(count: int) -> bytes:
    """Return a body with so many deletions that hand over a thousand tasks each."""
    deletion = {"token": "1.1", "then": [{}] * 1_000}
    return json.dumps({"deletions": [deletion] * count}, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        pytest.param("add", b'{"tasks":[' + b"{}," * (MAX_VALUES - 2) + b"{}]}", id="tasks without members"),
        pytest.param("add", b'{"tasks":[' + b'{"x":1},' * 60_000 + b"1]}", id="wrong tasks"),
        pytest.param("add", b'{"a":' + b'"",' * 260_000 + b"1}", id="texts"),
        pytest.param("add", b'{"a":"' + b',\\"' * 340_000 + b'"}', id="a text of quotes and commas"),
        pytest.param("exchange", handed_over(65), id="tasks of then in an exchange"),
        pytest.param("delete", handed_over(65), id="tasks of then in a delete"),
        pytest.param("exchange", handed_over(20), id="tasks of then in 64 KiB"),
        pytest.param("renew", b'{"tokens":[' + b'"1",' * 65_000 + b'"1"]}', id="tokens"),
    ],
)
def test_no_body_takes_the_loop_for_long(server: RunningServer, verb: str, body: bytes) -> None:
    assert body.count(b",") > MANY_VALUES
    assert loop_seconds(server, verb, body) < MAX_LOOP_SECONDS


def test_very_many_tasks_handed_over_take_effect_beside_the_loop(server: RunningServer) -> None:
    with closing(server.queue()) as queue:
        queue.add([NewTask(b"first")] * 30)
        leases = queue.lease(count=30, seconds=60)
        deletions = [{"token": lease.token, "then": [{}] * 1_000} for lease in leases]
        body = json.dumps({"deletions": deletions}, separators=(",", ":")).encode()
        clock = loop_clock(server)
        before = time.clock_gettime(clock)
        added = server.ask("POST", f"/v1/queues/{QUEUE}/delete", body).json()["added"]
        taken = time.clock_gettime(clock) - before
        assert isinstance(added, list) and len(added) == 30_000
        assert queue.stats().ready == 30_000
    assert taken < 2 * MAX_LOOP_SECONDS  # its answer of a mebibyte is made once


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize(
    ("body", "commas"),
    [
        (b'["a,b",1,"",2]', 3),
        (b'["\\",",1,"\\\\",2]', 3),
        (b'["\\\\\\",",1,",\\\\",2]', 3),
        (b'{",":",\\"",",":1,"a":[1,2]}', 3),
        (b'["\\u002c,\\n,",,"' + b"\\" * 8 + b'",,"', 4),
        (b'["no end,,', 0),
    ],
)
def test_commas_are_counted_across_slices(monkeypatch: pytest.MonkeyPatch, body: bytes, commas: int, size: int) -> None:
    monkeypatch.setattr(value_count, "SLICE_BYTES", size)
    monkeypatch.setattr(value_count, "SHORT_BODY_BYTES", 0)
    for begin in (b"[1,", b"[" + b'"",' * 5):
        one, found = begin + body, begin.count(b",") + commas
        check_values(one, most=found)
        with pytest.raises(Problem, match="too-many-values"):
            check_values(one, most=found - 1)
