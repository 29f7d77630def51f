"""Four producers and four consumers of one system in processes of their own, which work on while parts are measured."""

import multiprocessing
import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from multiprocessing.connection import Connection
from threading import Thread
from typing import Self

from tests.bench.held.catalog import PeerName, system_named
from tests.bench.held.system import BATCH, CONSUMERS, PRODUCERS, Counts, LoadPhase, Tally, keeps_totals
from tests.bench.measure import MeasurementFailedError

ANSWER_SECONDS = 60.0
POLL_SECONDS = 0.2
START_SECONDS = 60.0


class HeldWorkload:
    """The processes, from `with` on; use from one thread."""

    def __init__(self, name: PeerName, url: str) -> None:
        self.system = system_named(name)
        self._url = url
        self._total = Counts()
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._children = []
        for number in range(PRODUCERS + CONSUMERS):
            ours, theirs = context.Pipe()
            child = context.Process(target=_run, args=(name, url, theirs, number), daemon=True)
            child.start()
            theirs.close()
            self._pipes.append(ours)
            self._children.append(child)
        self._began = 0.0

    def __enter__(self) -> Self:
        try:
            self._await(lambda: self.taken().numbers["added"] > 0, START_SECONDS)
        except BaseException:
            self._end()
            raise
        self._began = time.monotonic() - BATCH * PRODUCERS / self.system.tasks_per_second
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        for child, pipe in zip(self._children, self._pipes, strict=True):
            child.kill()
            child.join()
            pipe.close()

    def taken(self) -> Counts:
        """Return what all did since the last time."""
        counts = Counts()
        try:
            for pipe in self._pipes:
                pipe.send("take")
            for pipe in self._pipes:
                if not pipe.poll(ANSWER_SECONDS):
                    raise MeasurementFailedError(f"a process of {self.system.name}'s load said nothing")
                counts += pipe.recv()
        except (EOFError, OSError):
            raise MeasurementFailedError(
                f"a process of {self.system.name}'s load ended early; its traceback is above"
            ) from None
        self._total.numbers += counts.numbers
        return counts

    def behind(self) -> int:
        """Return how many of the tasks offered until now were never leased, as far as was taken.

        It asks the system nothing: awa's own statistics take minutes under this load.
        """
        offered = (time.monotonic() - self._began) * self.system.tasks_per_second
        return max(0, round(offered) - self._total.numbers["leased_first"])

    def differences(self, seconds: float) -> Sequence[str] | None:
        """Add no more, do all that is there, and return where the totals differ from that; None: it keeps none."""
        if not keeps_totals(self.system):
            return None
        for pipe in self._pipes:
            pipe.send("finish")

        def is_done() -> bool:
            self.taken()
            return self._total.numbers["done"] >= self._total.numbers["added"]

        self._await(is_done, seconds)
        time.sleep(2 * POLL_SECONDS)
        self.taken()
        return self.system.differences(self._url, self._total)

    def _await(self, is_so: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > until:
                raise MeasurementFailedError(f"{self.system.name}'s load did not come to it within {seconds:.0f} s")
            time.sleep(POLL_SECONDS)


def _run(name: PeerName, url: str, pipe: Connection, number: int) -> None:
    """Work until this process is killed."""
    system, tally, phase = system_named(name), Tally(), LoadPhase(random.Random(number))
    Thread(target=_answer, args=(pipe, tally, phase), daemon=True).start()
    if number >= PRODUCERS:
        system.consume(url, number - PRODUCERS, tally, phase)
        return
    every = BATCH * PRODUCERS / system.tasks_per_second
    with system.adder(url) as add:
        due = time.monotonic() + every * number / PRODUCERS
        while not phase.finishing.wait(max(0.0, due - time.monotonic())):
            add([phase.task() for _ in range(BATCH)])
            tally.count("added", BATCH)
            due += every
        while True:
            time.sleep(ANSWER_SECONDS)


def _answer(pipe: Connection, tally: Tally, phase: LoadPhase) -> None:
    with closing(pipe):
        while True:
            if pipe.recv() == "finish":
                phase.finishing.set()
            else:
                pipe.send(tally.take())
