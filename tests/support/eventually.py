"""Wait for a state of a real process or server, never for a time."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

POLL_SECONDS = 0.01


def eventually(check: Callable[[], Answer], *, seconds: float = 10.0) -> Answer:
    """Call `check` until its result is true, and return that. Raises `AssertionError` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds} s: {getattr(check, '__qualname__', check)} answers {answer!r}")
        time.sleep(POLL_SECONDS)


async def eventually_async(check: Callable[[], Answer], *, seconds: float = 10.0) -> Answer:
    """Do the same in an event loop, which goes on meanwhile."""
    deadline = time.monotonic() + seconds
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds} s: {getattr(check, '__qualname__', check)} answers {answer!r}")
        await asyncio.sleep(POLL_SECONDS)
