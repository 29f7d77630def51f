"""Measure steady work while somebody holds a snapshot of PostgreSQL open, by each way of holding one.

Four producers add 800 tasks a second: half of them tagged, a tenth delayed. Four consumers lease by tag, or what is
untagged, release a twentieth and leave one in fifty to expire. For each way there are three parts of equal length:
before, held, after.
"""

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from multiprocessing.connection import Connection
from statistics import quantiles
from typing import Final, Self

from queue_core.errors import LeaseLostError
from queue_core.task import UNTAGGED, NewTask, TagFilter
from queue_core.verbs import Deletion
from tests.bench.measure import MeasurementFailedError
from tests.bench.places import BenchStore, Engine, new_place, opened, sizes
from tests.bench.record import stamped_payload
from tests.bench.site import BenchSite

PRODUCERS = 4
CONSUMERS = 4
BATCH = 40
LEASE_BATCH = 10
TASKS_PER_SECOND = 800
EVERY_SECONDS = BATCH * PRODUCERS / TASKS_PER_SECOND
DELAYED, RELEASED, EXPIRED = 0.1, 0.05, 0.02
DELAY_SECONDS = 1.0
LEASE_SECONDS = 5.0
ANSWER_SECONDS = 60.0
TAGS: Final = ("a", "b")

Report = tuple[int, list[float]]
"""Tasks done, and the seconds that each lease waited."""


def measure(site: BenchSite, engine: Engine) -> Mapping[str, float]:
    """Return for each way of holding a snapshot: the share done and the waits of each part, and its growth."""
    seconds = 20.0 * max(site.churn_minutes, 3) / len(WAYS) / site.divide_loads_by
    figures: dict[str, float] = {}
    for way, holding in WAYS.items():
        with new_place(site, engine) as place, _Workload(place) as workload:
            before = workload.part(seconds)
            with holding(place):
                held = workload.part(seconds)
            after = workload.part(seconds)
            for part, row in (("before", before), ("held", held), ("after", after)):
                figures |= {f"{way}_{part}_{name}": value for name, value in row.items()}
            figures[f"{way}_p95_ratio"] = held["p95"] / before["p95"]
            figures[f"{way}_last_ratio"] = after["p95"] / before["p95"]
            print(f"  {way}: {_shown(before)} | held {_shown(held)} | after {_shown(after)}", flush=True)
    return figures


class _Workload:
    """Producers and consumers in processes of their own, which work a part at a time."""

    def __init__(self, place: BenchStore) -> None:
        self._place = place
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._children = []
        for number in range(PRODUCERS + CONSUMERS):
            ours, theirs = context.Pipe()
            work = _produce if number < PRODUCERS else _consume
            child = context.Process(target=work, args=(place, theirs, number), daemon=True)
            child.start()
            theirs.close()
            self._pipes.append(ours)
            self._children.append(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child, pipe in zip(self._children, self._pipes, strict=True):
            child.kill()
            child.join()
            pipe.close()

    def part(self, seconds: float) -> dict[str, float]:
        """Work for so long; return the share of the offered tasks that was done, and the waits in seconds."""
        for pipe in self._pipes:
            pipe.send(seconds)
        added = sum(self._answer(pipe, seconds)[0] for pipe in self._pipes[:PRODUCERS])
        done, waits = 0, [0.0, 0.0]
        for pipe in self._pipes[PRODUCERS:]:
            number, waited = self._answer(pipe, seconds)
            done += number
            waits += waited
        cuts = quantiles(waits, n=20)
        offered = TASKS_PER_SECOND * seconds
        return {
            "added_share": added / offered,
            "done_share": done / offered,
            "p50": cuts[9],
            "p95": cuts[18],
            **sizes(self._place),
        }

    def _answer(self, pipe: Connection, seconds: float) -> Report:
        try:
            if not pipe.poll(seconds + ANSWER_SECONDS):
                raise MeasurementFailedError("a process of the workload said nothing")
            report: Report = pipe.recv()
        except EOFError:
            raise MeasurementFailedError("a process of the workload ended early; its traceback is above") from None
        return report


def _produce(place: BenchStore, pipe: Connection, number: int) -> None:
    chance = random.Random(number)
    with closing(opened(place)) as queue:
        while True:
            seconds = pipe.recv()
            due = time.perf_counter()
            until = due + seconds
            added = 0
            while due < until and time.perf_counter() < until:
                queue.add([_a_task(chance) for _ in range(BATCH)])
                added += BATCH
                due += EVERY_SECONDS
                time.sleep(max(due - time.perf_counter(), 0.0))
            pipe.send((added, []))


def _a_task(chance: random.Random) -> NewTask:
    return NewTask(
        stamped_payload(),
        tag=chance.choice(TAGS) if chance.random() < 0.5 else None,
        delay_seconds=DELAY_SECONDS if chance.random() < DELAYED else None,
    )


def _consume(place: BenchStore, pipe: Connection, number: int) -> None:
    chance = random.Random(number)
    tags = TagFilter.of(*TAGS) if number % 2 else UNTAGGED
    with closing(opened(place)) as queue:
        while True:
            seconds = pipe.recv()
            until = time.perf_counter() + seconds
            done, waits = 0, []
            while time.perf_counter() < until:
                leases = queue.lease(LEASE_BATCH, seconds=LEASE_SECONDS, tags=tags, wait_seconds=0.1)
                waits += [lease.waited_seconds for lease in leases]
                finished = []
                for lease in leases:
                    choice = chance.random()
                    if choice < RELEASED:
                        with suppress(LeaseLostError):
                            queue.release(lease, delay_seconds=DELAY_SECONDS)
                    elif choice > RELEASED + EXPIRED:
                        finished.append(Deletion(lease.token))
                with suppress(LeaseLostError):  # the machine stood still for as long as a lease
                    queue.delete(finished)
                    done += len(finished)
            pipe.send((done, waits))


# -- ways to hold a snapshot ---------------------------------------------------------------------------------------


@contextmanager
def _transaction(place: BenchStore, *, first: Sequence[str]) -> Iterator[None]:
    import psycopg

    with closing(psycopg.connect(place.url)) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        for statement in first:
            connection.execute(statement.encode())
        yield
        connection.rollback()


def _transaction_with_a_number(place: BenchStore) -> AbstractContextManager[None]:
    return _transaction(place, first=["SELECT pg_current_xact_id()"])


@contextmanager
def _dump(place: BenchStore) -> Iterator[None]:
    """Hold what a dump of another table does: its lock, and a snapshot without a transaction's number."""
    import psycopg

    with ExitStack() as stack:
        connection = stack.enter_context(closing(psycopg.connect(place.url, autocommit=True)))
        connection.execute("CREATE TABLE IF NOT EXISTS another (id int)")
        stack.enter_context(_transaction(place, first=["LOCK TABLE another IN ACCESS SHARE MODE", "TABLE another"]))
        yield


WAYS: Final[Mapping[str, Callable[[BenchStore], AbstractContextManager[None]]]] = {
    "transaction": _transaction_with_a_number,
    "dump": _dump,
}


def _shown(row: Mapping[str, float]) -> str:
    waits = f"p50 {row['p50'] * 1e3:.1f} ms, p95 {row['p95'] * 1e3:.1f} ms"
    return f"{row['done_share']:.1%} done, {waits}, tables {row['table_bytes'] / (1 << 20):.0f} MiB"
