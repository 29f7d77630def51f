"""Wait for a state of a real process or server, never for a time."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

POLL_SECONDS = 0.01
LONGEST_SECONDS = 60.0
"""Longest wait: a busy host may take its time; only a test that fails waits so long."""


def eventually(check: Callable[[], Answer], *, seconds: float = LONGEST_SECONDS) -> Answer:
    """Call `check` until its result is true, and return that. Raises `AssertionError` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds} s: {getattr(check, '__qualname__', check)} answers {answer!r}")
        time.sleep(POLL_SECONDS)


async def eventually_async(check: Callable[[], Answer], *, seconds: float = LONGEST_SECONDS) -> Answer:
    """Do the same in an event loop, which goes on meanwhile."""
    deadline = time.monotonic() + seconds
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds} s: {getattr(check, '__qualname__', check)} answers {answer!r}")
        await asyncio.sleep(POLL_SECONDS)
