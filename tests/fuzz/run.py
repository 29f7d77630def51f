"""Gives readers inputs until time is up. One that takes too long, or that a check stumbles over, ends its reader."""

import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from types import FrameType

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.fuzz.readers import Input, Reader

INPUT_SECONDS = 10.0
BATCH_INPUTS = 1000
DRAWING_COSTS = 10
"""So many times as long as making one: batches of drawn inputs are that much smaller."""
SHOWN_BYTES = 4000


class HangError(Exception):
    """A reader was still busy with one input when its time was up."""


@dataclass(slots=True)
class Count:
    """What became of a reader's inputs."""

    name: str
    right: int = 0
    refused: int = 0
    slowest_seconds: float = 0.0
    failure: str | None = None

    @property
    def inputs(self) -> int:
        return self.right + self.refused


def fuzz(
    readers: Sequence[Reader],
    *,
    seconds: float,
    first_seed: int,
    batch_inputs: int = BATCH_INPUTS,
    input_seconds: float = INPUT_SECONDS,
) -> list[Count]:
    """What came of a batch for every reader, and of further ones in turn for `seconds`.

    In the main thread only: it sets alarms.
    """
    counts = [Count(reader.name) for reader in readers]
    end = time.monotonic() + seconds
    number = first_seed
    while number == first_seed or time.monotonic() < end:
        for reader, count in zip(readers, counts, strict=True):
            if count.failure is None and (number == first_seed or time.monotonic() < end):
                _batch(reader, count, number, batch_inputs=batch_inputs, input_seconds=input_seconds)
        if all(count.failure is not None for count in counts):
            break
        number += 1
    return counts


def _batch(reader: Reader, count: Count, number: int, *, batch_inputs: int, input_seconds: float) -> None:
    last: list[Input] = []

    def check(given_input: Input) -> None:
        last[:] = [given_input]
        started = time.monotonic()
        with _bounded(input_seconds):
            is_right = reader.check(given_input)
        count.slowest_seconds = max(count.slowest_seconds, time.monotonic() - started)
        if is_right:
            count.right += 1
        else:
            count.refused += 1

    try:
        if reader.strategy is not None:
            _draw(reader.strategy, check, number, inputs=max(1, batch_inputs // DRAWING_COSTS))
        else:
            assert reader.make is not None
            chance = Random(number)
            for _ in range(batch_inputs):
                check(reader.make(chance))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        shown = f"{last[0][0]} {last[0][1][:SHOWN_BYTES].hex()}" if last else "none"
        count.failure = f"seed {number}, input {shown}\n{''.join(traceback.format_exception(error))}"


def _draw(strategy: SearchStrategy[Input], check: Callable[[Input], None], number: int, *, inputs: int) -> None:
    """A batch by hypothesis, without what it remembers of other runs."""
    bounds = settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )

    def body(given_input: Input) -> None:
        check(given_input)

    seed(number)(bounds(given(strategy)(body)))()


@contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    def ring(_number: int, _frame: FrameType | None) -> None:
        raise HangError(f"more than {seconds} s for one input")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
