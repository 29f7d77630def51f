"""Wait for a state of a real process or server, never for a time."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

POLL_SECONDS = 0.01
LONGEST_POLL_SECONDS = 0.25
LONGEST_SECONDS = 60.0
"""Longest wait: a busy host may take its time; only a test that fails waits so long."""


def eventually(check: Callable[[], Answer], *, seconds: float = LONGEST_SECONDS) -> Answer:
    """Call `check` until its result is true, and return that. Raises `AssertionError` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        answer = check()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds} s: {getattr(check, '__qualname__', check)} answers {answer!r}")
        time.sleep(pause_after(began))


async def eventually_async(check: Callable[[], Answer], *, seconds: float = LONGEST_SECONDS) -> Answer:
    """Do the same in an event loop, which goes on meanwhile."""
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        answer = check()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds} s: {getattr(check, '__qualname__', check)} answers {answer!r}")
        await asyncio.sleep(pause_after(began))


def pause_after(began: float) -> float:
    """Return how long to wait after a check: one that runs a command is not to keep a core from what it waits for."""
    took = time.monotonic() - began
    return min(max(POLL_SECONDS, 2 * took), LONGEST_POLL_SECONDS)
