"""A run of random calls over a store whose clock is stepped: no task is leased twice at a time, and none is lost."""

from collections.abc import Callable
from random import Random
from typing import Protocol

from queue_core.client.queue import Queues
from queue_core.task import Lease, NewTask


class SteppableTime(Protocol):
    """Time that passes when it is told to, and a wall clock that is stepped."""

    def advance(self, seconds: float) -> None: ...

    def step(self, seconds: float) -> None: ...

    def monotonic(self) -> float: ...


class SteppedChaos:
    """Random calls of two processes over one store whose clock is stepped at random."""

    def __init__(
        self, process: Callable[[], Queues], time: SteppableTime, random: Random, *, lease_seconds: float
    ) -> None:
        """Args:
        process: opens the store as another process does; its queue `q` has leases of `lease_seconds`, and no back-off.
        """
        self._process, self._time, self._random = process, time, random
        self._lease_seconds = lease_seconds
        self._processes = [process(), process()]
        self._held: dict[str, tuple[Lease, float]] = {}  # by task: the lease, and when it began or was renewed
        self.done: set[bytes] = set()
        self.added = 0

    def run(self, *, calls: int, steps: int) -> None:
        """Make the calls, with the steps among them; then finish."""
        for call in range(calls):
            self.disturb(call, steps_every=calls // steps)
            self.call()
        self.finish()

    def disturb(self, call: int, *, steps_every: int) -> None:
        """Let time pass; step the clock now and then, and restart a process."""
        self._time.advance(self._random.choice([0.0, 0.1, 2.0, 7.0]))
        if call % steps_every == steps_every // 2:
            self._time.step(self._random.choice([5.0, 20.0, 3_600.0, -3_600.0, self._random.uniform(-7_200, 7_200)]))
        if call % 200 == 199:
            which = self._random.randrange(2)
            self._processes[which].close()
            self._processes[which] = self._process()

    def call(self) -> None:
        """Make one call at one of the processes; fail for a lease of a task that is leased or done."""
        queue = self._random.choice(self._processes).queue("q")
        kind = self._random.choice(["add", "lease", "delete", "renew"])
        now = self._time.monotonic()
        if kind == "add":
            queue.add(NewTask(str(self.added).encode()))
            self.added += 1
        elif kind == "lease":
            for lease in queue.lease(3):
                before = self._held.pop(lease.name, None)
                assert before is None or now - before[1] >= 0.9 * self._lease_seconds, "leased before the lease's time"
                assert lease.payload not in self.done
                self._held[lease.name] = (lease, now)
        else:
            current = [lease for lease, since in self._held.values() if now - since < 0.9 * self._lease_seconds]
            if current and kind == "renew":
                lease = self._random.choice(current)
                queue.renew([lease], seconds=self._lease_seconds)
                self._held[lease.name] = (lease, now)
            elif current:
                lease = self._random.choice(current)
                queue.delete([lease])
                self.done.add(lease.payload)
                del self._held[lease.name]

    def finish(self) -> None:
        """Do what is left, once every lease is over."""
        self._time.advance(1.2 * self._lease_seconds)
        queue = self._processes[0].queue("q")
        while leases := queue.lease(100):
            assert self.done.isdisjoint(lease.payload for lease in leases)
            self.done.update(lease.payload for lease in leases)
            queue.delete(leases)
        for each in self._processes:
            each.close()
