"""Who waits for what a turn makes leasable leases it in the same transaction: one sync for the add and the lease."""

from collections.abc import Callable, Iterator, Sequence

from queue_core.server.leases.call import LeaseAnswer, LeaseCall
from queue_core.server.leases.waiters import Waiter
from queue_core.server.turns import Follower
from queue_core.verbs import Turn

MAX_FOLLOWERS = 8
"""With one turn, which is to be answered soon; the others it made something leasable for are woken then."""


def following(
    turn: Turn,
    take: Callable[[str, str | None, int], Sequence[Waiter[LeaseCall]]],
    *,
    lease: Callable[[LeaseCall, Turn], LeaseAnswer],
    done: Callable[[LeaseCall, object], None],
    back: Callable[[LeaseCall], None],
) -> Iterator[Follower]:
    """A few of those who wait for what the turn has made leasable, the most recently active first.

    Each has leased before the next is asked for, and nobody more once all is gone, or one has found nothing.

    Args:
        take: up to so many waiters of a queue for tasks of a tag. Each is told `done` with its answer, or `back` when
            the turn took no effect.
    """
    asked = 0
    for wake in turn.all_wakes():
        left = wake.count
        while left > 0 and asked < MAX_FOLLOWERS and (taken := take(wake.queue, wake.tag, 1)):
            asked += 1
            follower = _Leasing(taken[0].handle, lease, done, back)
            yield follower
            left -= follower.found
            if not follower.found:
                break
        turn.note_served(wake, wake.count - max(0, left))


class _Leasing:
    """A `Follower`: a call that waited; `found` tells how much it leased."""

    def __init__(
        self,
        call: LeaseCall,
        lease: Callable[[LeaseCall, Turn], LeaseAnswer],
        done: Callable[[LeaseCall, object], None],
        back: Callable[[LeaseCall], None],
    ) -> None:
        self.found = 0
        self._call = call
        self._lease = lease
        self._done = done
        self._back = back

    def step(self, turn: Turn) -> LeaseAnswer:
        answer = self._lease(self._call, turn)
        self.found = len(answer.granted.leases)
        return answer

    def done(self, outcome: object) -> None:
        self._done(self._call, outcome)

    def back(self) -> None:
        self._back(self._call)
