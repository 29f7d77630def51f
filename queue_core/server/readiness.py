"""Whether the store takes changes, and adds too: asked by a change, once for all who ask within a second."""

import asyncio
from collections.abc import Awaitable, Callable

from queue_core.clock import Clock
from queue_core.errors import StoreError, StoreUnavailableError
from queue_core.server.turns import Turns
from queue_core.store import Store
from queue_core.verbs import Turn

KEPT_SECONDS = 1.0
PROBE_SECONDS = 2.0
"""How long a store may take; a probe wants an answer before its own patience ends."""
PROBE = "readyz"
"""The lead that a probe takes for no time at all: a change that nobody sees."""


class Readiness:
    """Lives in the server's loop."""

    def __init__(
        self, turns: Turns, store: Store, clock: Clock, *, run: str, check: Callable[[], Awaitable[None]]
    ) -> None:
        """Args:
        check: raises the `StoreError` that keeps the server from being ready, beside that of a change.
        """
        self._turns = turns
        self._store = store
        self._clock = clock
        self._run = run
        self._check = check
        self._asking: asyncio.Task[StoreError | None] | None = None
        self._asked_at = 0.0
        self._wrote_at: float | None = None

    async def check(self) -> None:
        """Raise the `StoreError` that keeps the store from taking a change."""
        now = self._clock.monotonic()
        kept_seconds = KEPT_SECONDS if self._turns.is_beside else 0.0
        if self._asking is None or (self._asking.done() and now - self._asked_at >= kept_seconds):
            self._asked_at = now
            self._asking = asyncio.ensure_future(self._ask())
        failure = await asyncio.shield(self._asking)
        if failure is not None:
            raise failure

    async def _ask(self) -> StoreError | None:
        try:
            self._store.check_room()
            async with asyncio.timeout(PROBE_SECONDS):
                await self._check()
                await self._turns.run(self._probe)
        except StoreError as error:
            return error
        except TimeoutError:
            return self._turns.failure or StoreUnavailableError(f"the store has not answered for {PROBE_SECONDS:g} s")
        return None

    def _probe(self, turn: Turn) -> None:
        now = self._clock.monotonic()
        if self._turns.is_beside or self._wrote_at is None or now - self._wrote_at >= KEPT_SECONDS:
            self._wrote_at = now
            turn.transaction.lead(PROBE, self._run, seconds=0.0, now=turn.now)
