"""Measure what steady churn leaves behind: sizes and latencies, minute by minute, at constant depth.

Two processes add and exchange slowly enough that the engine, with its default settings, can clean up.
"""

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from multiprocessing.connection import Connection
from statistics import quantiles
from typing import Self

from queue_core.task import NewTask
from queue_core.verbs import Deletion
from tests.bench.driver import BATCH, WORKERS
from tests.bench.measure import MeasurementFailedError
from tests.bench.places import BenchStore, Engine, new_place, opened, sizes
from tests.bench.record import stamped_payload
from tests.bench.site import BenchSite

DEPTH = 100_000
CHURN_BATCH = 10
TASKS_PER_SECOND = 2_000
EVERY_SECONDS = CHURN_BATCH * WORKERS / TASKS_PER_SECOND
MINUTE_SECONDS = 60.0
ANSWER_SECONDS = 60.0
COMPARED = ("add_p50", "add_p95", "exchange_p50", "exchange_p95", "table_bytes", "index_bytes", "log_bytes")

Taken = dict[str, list[float]]
Meanwhile = Callable[[BenchStore], AbstractContextManager[None]]


def measure(site: BenchSite, engine: Engine) -> Mapping[str, float]:
    """Return each minute's figures as `minute_<n>_...`; those of the second and last also without the number."""
    return churn(site, engine)


def churn(site: BenchSite, engine: Engine, *, in_last_third: Meanwhile = lambda _: nullcontext()) -> dict[str, float]:
    """Do the same with another activity in the last third of the minutes."""
    minutes = max(site.churn_minutes, 3)
    with new_place(site, engine) as place:
        _fill(place, DEPTH // site.divide_loads_by)
        with _Churners(place) as churners:
            rows = [churners.minute(site) for _ in range(minutes - minutes // 3)]
            with in_last_third(place):
                rows += [churners.minute(site) for _ in range(minutes // 3)]
    figures = {f"minute_{number}_{name}": value for number, row in enumerate(rows, 1) for name, value in row.items()}
    for name in COMPARED:
        if name in rows[1]:
            figures |= {f"second_{name}": rows[1][name], f"last_{name}": rows[-1][name]}
    return figures


def _fill(place: BenchStore, tasks: int) -> None:
    with closing(opened(place)) as queue:
        for _ in range(tasks // BATCH):
            queue.add([NewTask(stamped_payload())] * BATCH)


class _Churners:
    """Two processes that repeatedly add ten tasks and exchange ten, and report once a minute how long each took."""

    def __init__(self, place: BenchStore) -> None:
        self._place = place
        self._number = 0
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._children = []
        for _ in range(WORKERS):
            ours, theirs = context.Pipe()
            child = context.Process(target=_churn, args=(place, theirs), daemon=True)
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

    def minute(self, site: BenchSite) -> dict[str, float]:
        """Run them for a minute (a tenth of it in a quick run); return seconds and bytes."""
        seconds = MINUTE_SECONDS / site.divide_loads_by
        for pipe in self._pipes:
            pipe.send(seconds)
        taken: Taken = {}
        for pipe in self._pipes:
            for verb, times in _answer(pipe, seconds).items():
                taken.setdefault(verb, []).extend(times)
        row = {"add_by_second": len(taken["add"]) * CHURN_BATCH / seconds}
        for verb, times in taken.items():
            cuts = quantiles(times, n=20)
            row |= {f"{verb}_p50": cuts[9], f"{verb}_p95": cuts[18]}
        row |= sizes(self._place)
        self._number += 1
        print(f"  minute {self._number}: {_row_figures(row)}", flush=True)
        return row


def _answer(pipe: Connection, seconds: float) -> Taken:
    try:
        if not pipe.poll(seconds + ANSWER_SECONDS):
            raise MeasurementFailedError("a churning process said nothing")
        taken: Taken = pipe.recv()
    except EOFError:
        raise MeasurementFailedError("a churning process ended early; its traceback is above") from None
    return taken


def _churn(place: BenchStore, pipe: Connection) -> None:
    with closing(opened(place)) as queue:
        finished: Sequence[Deletion] = ()
        while True:
            seconds = pipe.recv()
            due = time.perf_counter()
            until = due + seconds
            taken: Taken = {"add": [], "exchange": []}
            while due < until and time.perf_counter() < until:
                due += EVERY_SECONDS
                time.sleep(max(due - time.perf_counter(), 0.0))
                began = time.perf_counter()
                queue.add([NewTask(stamped_payload())] * CHURN_BATCH)
                added = time.perf_counter()
                leases, lost = queue.exchange(finished, count=CHURN_BATCH)
                assert not lost, f"leases were lost: {lost}"
                finished = [Deletion(lease.token) for lease in leases]
                taken["add"].append(added - began)
                taken["exchange"].append(time.perf_counter() - added)
            pipe.send(taken)


def _row_figures(row: Mapping[str, float]) -> str:
    shown = []
    for name, value in row.items():
        if name.endswith("bytes"):
            shown.append(f"{name.removesuffix('_bytes')} {value / (1 << 20):.1f} MiB")
        else:
            shown.append(f"{value:,.0f}/s" if name.endswith("second") else f"{name} {value * 1e3:.2f} ms")
    return ", ".join(shown)
