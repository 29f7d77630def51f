"""The workload of callers under faults: every verb, in seeded order, with live and stale tokens."""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from queue_core.admission import Rate, TagLimits
from queue_core.attempts.attempt import Failure
from queue_core.client.queue import Queues
from queue_core.errors import LeaseLostError, StoreUnavailableError
from queue_core.limits import MAX_HEADERS_BYTES, MAX_HISTORY_LEASES
from queue_core.task import ANY, UNTAGGED, Lease, NewTask, QueueSpec, TagFilter
from queue_core.verbs import Deletion
from tests.faults.history import History
from tests.faults.recorded import RecordedQueue

TAGS = (None, "parse", "render", "resize")
FILTERS = (ANY, ANY, UNTAGGED, TagFilter.of("parse"), TagFilter.of("parse", "resize"), TagFilter.oldest())
QUEUES = tuple(
    QueueSpec(
        name,
        max_leases=max_leases,
        retry_min_seconds=0.01,
        retry_max_seconds=0.05,
        history_keep=MAX_HISTORY_LEASES,
    )
    for name, max_leases in (("first", 5), ("next", None))
)
LIMITED_QUEUES = (
    (
        replace(QUEUES[0], max_in_flight=5, per_tag=TagLimits(max_in_flight=2, fair=True)),
        replace(QUEUES[1], per_tag=TagLimits(max_in_flight=3, rate=Rate(40.0, burst=4))),
    ),
    (
        replace(QUEUES[0], rate=Rate(100.0, burst=8), per_tag=TagLimits(rate=Rate(30.0, burst=2), fair=True)),
        replace(QUEUES[1], max_in_flight=6, per_tag=TagLimits(max_in_flight=1)),
    ),
)
"""The same queues under limits: two sets of them, by turns."""
LIMITED_LEASE_SECONDS = (60.0, 0.3, 0.3, 0.1, 0.03)
"""Shorter, so that leases of killed callers do not take up all places for long."""
SIZES = (0, 0, 20, 200, 200, 200, 2000, 5000, 70_000)
LEASE_SECONDS = (60.0, 60.0, 60.0, 5.0, 0.3, 0.03)
MAX_HELD = 12
SHARED_NAMES = 400
STUBBORN_NAMES = frozenset(f"shared-{spec.name}-{number}" for spec in QUEUES for number in range(0, SHARED_NAMES, 10))
"""Tasks that nobody finishes: they go back to their old places, and have more attempts than are kept."""
STALE_TOKENS_KEPT = 10
HEADED_SHARE = 0.3
ODD_TEXT = 'B\u00fcrste "\U0001f6b2" \\ 100 % \t\r\n\u2028'
"""Text that has to be escaped on its way into JSON, SQL, Lua or a line, and out of it."""
FILLED = MAX_HEADERS_BYTES - len("filled")


def create_queues(queues: Queues, specs: Sequence[QueueSpec] = QUEUES) -> None:
    """Create the callers' queues, or leave existing ones alone."""
    for spec in specs:
        queues.put_queue(spec)


def drawn_headers(random: Random) -> dict[str, str] | None:
    """Return the headers of a new task: none for most, else a few, odd ones, or as many bytes as are allowed."""
    if random.random() >= HEADED_SHARE:
        return None
    return random.choice(
        (
            {"request-id": f"{random.getrandbits(64):016x}", "Content-Type": "image/png", "empty": ""},
            {"odd": ODD_TEXT, "x_1.2-3": f"{random.random()}"},
            {"filled": "\u00e9" * (FILLED // 2)},
            {"filled": "x" * FILLED},
        )
    )


def drawn_failure(random: Random, tokens: Sequence[str]) -> Failure | None:
    """Return the error of a release, which names the tokens, or none."""
    if random.random() < 0.4:
        return None
    said = f"{' '.join(tokens)} {random.choice(('failed', ODD_TEXT, ODD_TEXT * 5))}"
    return Failure("raised", "ValueError", said, random.choice(("", "tasks.py:14")), "host-1")


class StoreCaller:
    """A producer, a worker, or both; one verb at a time.

    Args:
        name: its identity as a worker and the prefix of its tasks' uids; new for every start.
        role: a producer only adds; a worker does everything.
        limited: its queues are `LIMITED_QUEUES`; some tasks have a priority.
    """

    def __init__(
        self,
        queues: Queues,
        history: History,
        *,
        name: str,
        random: Random,
        role: str = "worker",
        limited: bool = False,
    ) -> None:
        numbers = itertools.count(1)
        self._queues = [RecordedQueue(queues.queue(spec.name), history, numbers) for spec in QUEUES]
        self._name = name
        self._random = random
        self._lengths = LIMITED_LEASE_SECONDS if limited else LEASE_SECONDS
        self._priorities = (0, 0, 0, 5, 9) if limited else (0,)
        self._uids = itertools.count(1)
        self._held: list[tuple[RecordedQueue, Lease]] = []
        self._stale: list[tuple[RecordedQueue, Lease]] = []
        self._named: list[tuple[RecordedQueue, str]] = []
        self._again: list[tuple[RecordedQueue, list[NewTask]]] = []
        producing: list[tuple[int, Callable[[], None]]] = [(10, self.add), (1, self.delete_by_name)]
        working: list[tuple[int, Callable[[], None]]] = [
            (7, self.lease),
            (7, self.exchange),
            (4, self.delete),
            (3, self.renew),
            (3, self.release),
            (1, self.use_stale_token),
        ]
        self._verbs = producing if role == "producer" else producing + working

    def turn(self) -> None:
        """Call one verb. Lost leases are expected; other errors of the store are raised."""
        verb = self._random.choices([verb for _, verb in self._verbs], [weight for weight, _ in self._verbs])[0]
        with contextlib.suppress(LeaseLostError):
            verb()

    def add(self) -> None:
        """Add one task or up to five, or repeat the named tasks of a failed add, as a producer would."""
        if self._again:
            queue, tasks = self._again.pop()
        else:
            queue = self._random.choice(self._queues)
            drawn = [self._new_task(queue.name) for _ in range(self._random.choice((1, 1, 1, 1, 2, 3, 4, 5)))]
            self._named += [(queue, task.name) for task in drawn if task.name and not task.name.startswith("shared")]
            tasks = list({task.name or task.payload: task for task in drawn}.values())
        try:
            queue.add(tasks)
        except StoreUnavailableError:
            named = [task for task in tasks if task.name is not None]
            self._again += [(queue, named)] if named else []
            raise

    def lease(self) -> None:
        """Lease some tasks with random options."""
        if len(self._held) >= MAX_HELD:
            self.delete()
            return
        queue = self._random.choice(self._queues)
        leases = queue.lease(
            self._random.randint(1, 5),
            seconds=self._random.choice(self._lengths),
            tags=self._random.choice(FILTERS),
            worker=self._name,
        )
        self._held += [(queue, lease) for lease in leases]

    def exchange(self) -> None:
        """Delete finished tasks and lease the next."""
        queue = self._random.choice(self._queues)
        mine = [pair for pair in self._held if pair[0] is queue and pair[1].name not in STUBBORN_NAMES][:5]
        self._forget(mine)
        deletions = [Deletion(lease.token, self._then()) for _, lease in mine]
        leases = queue.lease(
            max(1, len(mine)), seconds=self._random.choice(self._lengths), worker=self._name, deletions=deletions
        )
        self._held += [(queue, lease) for lease in leases]

    def delete(self) -> None:
        """Finish one task, sometimes handing over to the next queue; give a stubborn one back."""
        for queue, lease in self._some():
            self._forget([(queue, lease)])
            if lease.name in STUBBORN_NAMES:
                error = drawn_failure(self._random, [lease.token])
                queue.release([lease.token], charge="uncounted", error=error)
                continue
            queue.delete([Deletion(lease.token, self._then())])

    def renew(self) -> None:
        """Move one lease's end, sooner or later."""
        for queue, lease in self._some():
            queue.renew([lease.token], seconds=self._random.choice(self._lengths))

    def release(self) -> None:
        """Release one lease with random options."""
        for queue, lease in self._some():
            self._forget([(queue, lease)])
            way = 0 if lease.name in STUBBORN_NAMES else self._random.randrange(5)
            error = drawn_failure(self._random, [lease.token])
            if way == 0:
                delay_seconds = self._random.choice((None, 0.0))
                queue.release([lease.token], charge="uncounted", delay_seconds=delay_seconds, error=error)
            elif way == 1:
                queue.release([lease.token], dead_reason="broken", error=error)
            else:
                queue.release([lease.token], delay_seconds=self._random.choice((None, 0.0, 0.05)), error=error)

    def delete_by_name(self) -> None:
        """Delete one of its own tasks, even while it is leased."""
        if self._named:
            queue, name = self._named.pop(self._random.randrange(len(self._named)))
            queue.delete_by_name([name])

    def use_stale_token(self) -> None:
        """Use an old token: it must be refused."""
        if self._stale:
            queue, lease = self._random.choice(self._stale)
            self._random.choice(
                (
                    lambda: queue.delete([Deletion(lease.token)]),
                    lambda: queue.renew([lease.token], seconds=60.0),
                    lambda: queue.release([lease.token]),
                )
            )()

    def _some(self) -> list[tuple[RecordedQueue, Lease]]:
        return [self._random.choice(self._held)] if self._held else []

    def _forget(self, pairs: list[tuple[RecordedQueue, Lease]]) -> None:
        self._held = [pair for pair in self._held if pair not in pairs]
        self._stale = (self._stale + pairs)[-STALE_TOKENS_KEPT:]

    def _then(self) -> tuple[NewTask, ...]:
        if self._random.random() < 0.7:
            return ()
        uid = f"{self._name}-{next(self._uids)}"
        headers = drawn_headers(self._random)
        return (NewTask(self._payload(uid), tag=self._random.choice(TAGS), queue="next", headers=headers),)

    def _new_task(self, queue: str) -> NewTask:
        kind = self._random.randrange(10)
        if kind == 0:
            number = self._random.randrange(SHARED_NAMES)
            return NewTask(b"", name=f"shared-{queue}-{number}", tag=TAGS[number % len(TAGS)])
        uid = f"{self._name}-{next(self._uids)}"
        delay_seconds = self._random.choice((0.02, 0.2, 30.0)) if kind == 1 else None
        tag = self._random.choice(TAGS)
        headers = drawn_headers(self._random)
        if kind in (2, 3):
            payload = self._random.randbytes(self._random.choice(SIZES))
            return NewTask(
                payload, name=uid, tag=tag, delay_seconds=delay_seconds, headers=headers, priority=self._priority()
            )
        return NewTask(
            self._payload(uid), tag=tag, delay_seconds=delay_seconds, headers=headers, priority=self._priority()
        )

    def _priority(self) -> int:
        return self._random.choice(self._priorities) if len(self._priorities) > 1 else 0

    def _payload(self, uid: str) -> bytes:
        return f"{uid};".encode() + self._random.randbytes(self._random.choice(SIZES))
