"""A call of lease or exchange, from its arrival to its answer."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from queue_core.building import builder
from queue_core.errors import QueueError
from queue_core.server.leases.waiters import Waiter
from queue_core.store import ClientCall, Deletion, Granted, Room
from queue_core.task import TagFilter
from queue_core.verbs import Turn


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """What a call is answered with."""

    granted: Granted
    lost: tuple[str, ...] = ()


new_answer = builder(LeaseAnswer)
NOTHING = Granted(())
WAITED = ".w"
"""Marks the session under which a client's call leases after it has waited: its deletions have an answer already."""


@dataclass(slots=True, eq=False)
class LeaseCall:
    """One call of lease or exchange, from its arrival to its answer.

    Args:
        caller: whose activity counts: the worker, or its connection when it gave no name.
        answer: told once, in the loop: the leases and the tokens that were lost, or an error.
        is_gone: whether the caller has hung up; asked right before a lease is granted to one that waited.
    """

    queue: str
    count: int
    seconds: float | None
    tags: TagFilter
    worker: str
    wait_seconds: float
    caller: object
    deletions: Sequence[Deletion]
    answer: Callable[[LeaseAnswer | QueueError | Exception], None]
    is_gone: Callable[[], bool]
    prepare: Callable[[object], None] | None = None
    """Makes an answer ready: see `Prepare` in `turns.py`."""
    size_bytes: int = 0
    client_call: ClientCall | None = None
    """The client's call that this is, if it may be sent again."""
    has_deleted: bool = False
    """Whether its deletions took effect: whatever becomes of the lease, that is to be told."""
    room: Room | None = None
    """Room for the leased tasks in the answer."""
    lost: tuple[str, ...] = ()
    is_over: bool = False
    ends_at: float | None = None
    timer: asyncio.TimerHandle | None = None
    waiter: "Waiter[LeaseCall] | None" = None
    grant: Callable[[Turn], Granted] | None = None
    """How leases are granted, where that is more than one `Turn.lease`."""
    news: int = 0
    """What was known of the queue when it was last looked at for this call."""

    def exchange(self, turn: Turn) -> LeaseAnswer:
        """Delete what is done, and lease."""
        if self.grant is not None:
            return new_answer(self.grant(turn))
        call = self.client_call
        if call is not None:
            self.client_call = replace(call, is_repeat=True)  # should this have to be run again
        granted, lost = turn.exchange(
            self.queue,
            self.deletions,
            count=self.count,
            seconds=self.seconds,
            tags=self.tags,
            worker=self.worker,
            call=call,
            room=self.room,
        )
        self.lost = tuple(lost)
        if call is not None and call.is_repeat and not granted.leases:
            granted = self.lease(turn)  # it may have been granted something after it had waited
        return new_answer(granted, self.lost)

    def lease(self, turn: Turn) -> Granted:
        """Lease what there is now; nothing is deleted again."""
        if self.grant is not None:
            return self.grant(turn)
        call = self.client_call
        if call is not None:
            call = replace(call, session=call.session + WAITED)
        return turn.lease(
            self.queue,
            count=self.count,
            seconds=self.seconds,
            tags=self.tags,
            worker=self.worker,
            room=self.room,
            call=call,
        )

    def stop_timer(self) -> None:
        """The time is of no matter any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
