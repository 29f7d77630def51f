"""A producer for asyncio libraries that stays in the loop between two adds."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any

from tests.bench.driver import NotOfferedError


class LoopProducer(ABC):
    """Entering a loop for each add would cost such a library time that its users don't spend."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    @abstractmethod
    async def send(self, payload: bytes) -> None:
        """Add one task, and return when it is acknowledged."""

    @abstractmethod
    async def leave(self) -> None:
        """Close the connections."""

    def add(self, payload: bytes) -> None:
        self.run(self.send(payload))

    def add_one_by_one(self, payload: bytes, tasks: int) -> None:
        """Add the payload `tasks` times, each once the one before is acknowledged."""
        self.run(self._send_each(payload, tasks))

    def add_batch(self, payloads: Sequence[bytes]) -> None:
        raise NotOfferedError

    def close(self) -> None:
        self.run(self.leave())
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the loop."""
        self._loop.run_until_complete(coroutine)

    async def _send_each(self, payload: bytes, tasks: int) -> None:
        for _ in range(tasks):
            await self.send(payload)
