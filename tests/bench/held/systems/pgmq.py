"""pgmq: its SQL functions over psycopg, prepared. Each tag is a queue of its own, which is how it leases by tag."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import psycopg
from psycopg.types.json import Jsonb

from tests.bench.drivers.pgmq import sql_of
from tests.bench.held.system import (
    DELAY_SECONDS,
    LEASE_BATCH,
    LEASE_SECONDS,
    POLL_SECONDS,
    TAGS,
    Adder,
    LoadPhase,
    LoadTask,
    Tally,
)

UNTAGGED = "untagged"
SEND = "SELECT pgmq.send_batch(%s, %s::jsonb[], %s::integer)"
READ = "SELECT msg_id, read_ct, message FROM pgmq.read(%s, %s, %s)"
RELEASE = "SELECT pgmq.set_vt(%s, %s::bigint, %s::integer)"
DELETE = "SELECT pgmq.delete(%s, %s::bigint[])"


class HeldPgmq:
    """One connection a process. A consumer that finds nothing looks again after 20 ms."""

    name = "pgmq"
    notions = "a tag is a queue of its own"
    tasks_per_second = 800

    def install(self, url: str) -> None:
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            connection.execute(sql_of(None).encode())
            for queue in (UNTAGGED, *TAGS):
                connection.execute("SELECT pgmq.create(%s)", [queue])

    @contextmanager
    def adder(self, url: str) -> Iterator[Adder]:
        with closing(_connected(url)) as connection:

            def add(tasks: Sequence[LoadTask]) -> None:
                batches: dict[tuple[str, float], list[Jsonb]] = {}
                for task in tasks:
                    batch = batches.setdefault((task.tag or UNTAGGED, task.delay_seconds or 0.0), [])
                    batch.append(Jsonb({"body": task.payload.decode()}))
                with connection.transaction():
                    for (queue, delay), messages in batches.items():
                        connection.execute(SEND, [queue, messages, round(delay)])

            yield add

    def consume(self, url: str, number: int, tally: Tally, phase: LoadPhase) -> None:
        queues = TAGS if number % 2 else (UNTAGGED,)
        with closing(_connected(url)) as connection:
            while True:
                if not sum([_turn(connection, queue, tally, phase) for queue in queues]):
                    time.sleep(POLL_SECONDS)


def _turn(connection: "psycopg.Connection[tuple[object, ...]]", queue: str, tally: Tally, phase: LoadPhase) -> int:
    """Read once and end what was read; return how many that were."""
    rows = connection.execute(READ, [queue, round(LEASE_SECONDS), LEASE_BATCH]).fetchall()
    finished = []
    for message_id, read_count, message in rows:
        tally.leased(message["body"], is_first=read_count == 1)  # type: ignore[index]
        fate = phase.fate()
        if fate == "done":
            finished.append(message_id)
        elif fate == "release":
            connection.execute(RELEASE, [queue, message_id, round(DELAY_SECONDS)])
            tally.count("released")
    if finished:
        connection.execute(DELETE, [queue, finished])
        tally.count("done", len(finished))
    return len(rows)


def _connected(url: str) -> "psycopg.Connection[tuple[object, ...]]":
    connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
    connection.execute("SET client_min_messages = warning")
    return connection
