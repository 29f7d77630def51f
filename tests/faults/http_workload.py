"""The workload of callers over HTTP: every verb, in batches, with leases that end during calls.

A caller trusts the client: an answer is recorded as it was given.
"""

import contextlib
import itertools
from collections.abc import Callable
from random import Random

from queue_core.client.queue import Queues
from queue_core.errors import LeaseLostError
from queue_core.task import ANY, UNTAGGED, Lease, NewTask, TagFilter
from queue_core.verbs import Deletion
from tests.faults.history import History
from tests.faults.recorded import RecordedQueue, exact_outcome_of
from tests.faults.workload import QUEUES, SHARED_NAMES, STUBBORN_NAMES, TAGS, drawn_failure, drawn_headers

FILTERS = (ANY, ANY, ANY, UNTAGGED, TagFilter.of("parse"), TagFilter.of("parse", "resize"), TagFilter.oldest())
LEASE_SECONDS = (0.3, 0.5, 1.0, 1.0, 2.0, 2.0)
LONGEST_LEASE_SECONDS = max(LEASE_SECONDS)
WAITS_SECONDS = (0.0, 0.0, 0.0, 0.2, 1.0)
DELAYS_SECONDS = (0.02, 0.2, 1.0)
SIZES = (0, 20, 20, 200, 200, 2000)
LARGE_BYTES = 70_000
LARGE_SHARE = 0.005
MAX_HELD = 12
STALE_KEPT = 20


class HttpWorkloadCaller:
    """One thread's calls, one verb at a time.

    Args:
        name: its identity as a worker and the prefix of its tasks' uids; new for every start.
        numbers: of the calls in the history, shared by the threads of a process.
    """

    def __init__(
        self, queues: Queues, history: History, numbers: "itertools.count[int]", *, name: str, random: Random
    ) -> None:
        self._queues = [
            RecordedQueue(queues.queue(spec.name), history, numbers, outcome_of=exact_outcome_of) for spec in QUEUES
        ]
        self._name = name
        self._random = random
        self._uids = itertools.count(1)
        self._held: list[tuple[RecordedQueue, Lease]] = []
        self._stale: list[tuple[RecordedQueue, Lease]] = []
        self._named: list[tuple[RecordedQueue, str]] = []
        self._is_short = True
        self._verbs: list[tuple[int, Callable[[], None]]] = [
            (6, self.lease),
            (7, self.exchange),
            (5, self.delete),
            (3, self.renew),
            (3, self.release),
            (1, self.delete_by_name),
            (1, self.use_stale_tokens),
        ]

    def turn(self) -> None:
        """Call one verb. Lost leases are expected; other errors of the client are raised."""
        adding = 16 if self._is_short else 4
        verbs = [*self._verbs, (adding, self.add)]
        verb = self._random.choices([verb for _, verb in verbs], [weight for weight, _ in verbs])[0]
        with contextlib.suppress(LeaseLostError):
            verb()

    def add(self) -> None:
        """Add one task or up to five."""
        queue = self._random.choice(self._queues)
        drawn = [self._new_task(queue) for _ in range(self._random.choice((1, 1, 1, 2, 3, 5)))]
        queue.add(list({task.name or task.payload: task for task in drawn}.values()))

    def lease(self) -> None:
        """Lease some tasks with random options, waiting or not."""
        if len(self._held) >= MAX_HELD:
            self.delete()
            return
        queue = self._random.choice(self._queues)
        count = self._random.randint(1, 5)
        leases = queue.lease(
            count,
            seconds=self._random.choice(LEASE_SECONDS),
            tags=self._random.choice(FILTERS),
            worker=self._name,
            wait_seconds=self._random.choice(WAITS_SECONDS),
        )
        self._is_short = len(leases) < count
        self._held += [(queue, lease) for lease in leases]

    def exchange(self) -> None:
        """Delete finished tasks and lease the next."""
        queue, mine = self._some(5)
        mine = [lease for lease in mine if lease.name not in STUBBORN_NAMES]
        self._forget(queue, mine)
        leases = queue.lease(
            max(1, len(mine)),
            seconds=self._random.choice(LEASE_SECONDS),
            worker=self._name,
            deletions=[Deletion(lease.token, self._then()) for lease in mine],
            wait_seconds=self._random.choice(WAITS_SECONDS),
        )
        self._is_short = len(leases) < max(1, len(mine))
        self._held += [(queue, lease) for lease in leases]

    def delete(self) -> None:
        """Finish some tasks, sometimes handing over to the next queue; give stubborn ones back."""
        queue, mine = self._some(4)
        stubborn = [lease.token for lease in mine if lease.name in STUBBORN_NAMES]
        if mine:
            self._forget(queue, mine)
        if stubborn:
            queue.release(stubborn, charge="uncounted", error=drawn_failure(self._random, stubborn))
        mine = [lease for lease in mine if lease.name not in STUBBORN_NAMES]
        if mine:
            queue.delete([Deletion(lease.token, self._then()) for lease in mine])

    def renew(self) -> None:
        """Move the ends of some leases, sooner or later."""
        queue, mine = self._some(4)
        if mine:
            queue.renew([lease.token for lease in mine], seconds=self._random.choice(LEASE_SECONDS))

    def release(self) -> None:
        """Release some leases with random options."""
        queue, mine = self._some(3)
        if not mine:
            return
        self._forget(queue, mine)
        tokens = [lease.token for lease in mine]
        way = 0 if any(lease.name in STUBBORN_NAMES for lease in mine) else self._random.randrange(6)
        error = drawn_failure(self._random, tokens)
        if way < 2:
            queue.release(tokens, charge="uncounted", delay_seconds=self._random.choice((None, 0.0)), error=error)
        elif way == 2:
            queue.release(tokens, dead_reason="broken", error=error)
        else:
            queue.release(tokens, delay_seconds=self._random.choice((None, 0.0, 0.05, 0.3)), error=error)

    def delete_by_name(self) -> None:
        """Delete one of its own tasks, even while it is leased."""
        if self._named:
            queue, name = self._named.pop(self._random.randrange(len(self._named)))
            queue.delete_by_name([name])

    def use_stale_tokens(self) -> None:
        """Use old tokens together with live ones: each must get its own outcome."""
        queue, mine = self._some(2)
        tokens = [lease.token for of, lease in self._stale if of is queue][-2:]
        if not tokens:
            return
        verb = self._random.randrange(3)
        if verb == 0:
            self._forget(queue, mine)
            queue.delete([Deletion(token) for token in (*tokens, *(lease.token for lease in mine))])
        elif verb == 1:
            queue.renew([*tokens, *(lease.token for lease in mine)], seconds=self._random.choice(LEASE_SECONDS))
        else:
            self._forget(queue, mine)
            given_back = [*tokens, *(lease.token for lease in mine)]
            queue.release(given_back, error=drawn_failure(self._random, given_back))

    def _some(self, most: int) -> tuple[RecordedQueue, list[Lease]]:
        """Return up to `most` leases held in one queue."""
        queue = self._random.choice(self._queues)
        mine = [lease for of, lease in self._held if of is queue]
        return queue, self._random.sample(mine, min(len(mine), self._random.randint(1, most)))

    def _forget(self, queue: RecordedQueue, leases: list[Lease]) -> None:
        tokens = {lease.token for lease in leases}
        self._held = [(of, lease) for of, lease in self._held if lease.token not in tokens]
        self._stale = (self._stale + [(queue, lease) for lease in leases])[-STALE_KEPT:]

    def _then(self) -> tuple[NewTask, ...]:
        if self._random.random() < 0.7:
            return ()
        headers = drawn_headers(self._random)
        return (NewTask(self._payload(), tag=self._random.choice(TAGS), queue="next", headers=headers),)

    def _new_task(self, queue: RecordedQueue) -> NewTask:
        kind = self._random.randrange(20)
        if kind == 0:
            number = self._random.randrange(SHARED_NAMES)
            return NewTask(b"", name=f"shared-{queue.name}-{number}", tag=TAGS[number % len(TAGS)])
        delay_seconds = self._random.choice(DELAYS_SECONDS) if kind == 1 else None
        tag = self._random.choice(TAGS)
        headers = drawn_headers(self._random)
        if kind < 7:
            name = self._uid()
            self._named = [*self._named, (queue, name)][-STALE_KEPT:]
            payload = self._random.randbytes(self._random.choice(SIZES))
            return NewTask(payload, name=name, tag=tag, delay_seconds=delay_seconds, headers=headers)
        return NewTask(self._payload(), tag=tag, delay_seconds=delay_seconds, headers=headers)

    def _payload(self) -> bytes:
        size = LARGE_BYTES if self._random.random() < LARGE_SHARE else self._random.choice(SIZES)
        return f"{self._uid()};".encode() + self._random.randbytes(size)

    def _uid(self) -> str:
        return f"{self._name}-{next(self._uids)}"
