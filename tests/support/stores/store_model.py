"""A state machine that runs a store and the reference side by side: all outcomes, counts and samples must be equal."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from queue_core.admission import Rate, TagLimits
from queue_core.attempts.attempt import GIVEN_BACK, WORKER_DIED, Failure
from queue_core.clock import Instant, ManualClock, after
from queue_core.errors import QueueError
from queue_core.limits import FARTHEST_ETA_SECONDS, LARGEST_PAYLOAD_BYTES, MAX_ETA_SECONDS, MAX_PAYLOAD_BYTES
from queue_core.store import Store, Transaction
from queue_core.stores.bounded_page import bounded_page
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ANY, Lease, NewTask, Progress, QueueSpec, StoredTask, TagFilter, TaskState
from queue_core.verbs import Deletion, Granted, LeaseRequest, Page, PayloadAllowance, PeekQuery, Release, Renewal
from tests.support.stores import changes
from tests.support.stores.task_builders import MICROSECOND

QUEUES = ("one", "two")
TAGS = (None, "a", "b", "ä")
WORKERS = ("", "w1", "w2", "w3")

queues = some.sampled_from(QUEUES)
filters = some.one_of(
    some.just(TagFilter()),
    some.just(TagFilter("untagged")),
    some.just(TagFilter.oldest()),
    some.lists(some.sampled_from(["a", "b", "ä", "none"]), min_size=1, max_size=3).flatmap(
        lambda tags: some.sampled_from([TagFilter.of(*tags), TagFilter.oldest(*tags)])
    ),
)
delays = some.sampled_from([None, 0.0, MICROSECOND, 1.0, 2.5, 5.0])
new_tasks = some.builds(
    NewTask,
    payload=some.sampled_from([b"", b"x", b"y" * 2048, b"z" * 2049]),
    name=some.sampled_from([None, None, None, "n1", "n2", "n3"]),
    tag=some.sampled_from(TAGS),
    delay_seconds=delays,
    queue=some.sampled_from([None, None, None, None, "one", "two", "unknown"]),
    max_leases=some.sampled_from([None, None, None, 1, 2, 3]),
    headers=some.sampled_from([None, None, {}, {"trace-id": "1"}, {"a": 'ü"\n\\', "b": ""}]),
    priority=some.sampled_from([0, 0, 0, 0, 1, 9]),
)
rooms = some.sampled_from([None, None, PayloadAllowance(0), PayloadAllowance(2050), PayloadAllowance(4500, 10, 2)])
totals = some.sampled_from([1, 2048, 2050, 5000])
failures = some.sampled_from(
    [
        GIVEN_BACK,
        Failure("raised", "ValueError", 'bad "width"\n\\ü', "tasks.py:14", "host"),
        Failure("timed_out", message="after 30 s"),
    ]
)
KILLED = Failure("worker_died", "SIGKILL", 'killed: "no memory"\n\\ü', "", "host")
news = some.sampled_from(
    [(None, None), (None, None), (Progress(0.25, 'page "1"'), None), (None, b"\x00\xff"), (Progress(1.0), b"")]
)
next_tasks = some.lists(new_tasks, min_size=1, max_size=3)
plain_tasks = some.builds(
    NewTask, tag=some.sampled_from(TAGS), delay_seconds=delays, headers=some.sampled_from([None, None, {"n": "1"}])
)
some_tasks = some.one_of(some.lists(new_tasks, min_size=1, max_size=5), some.tuples(plain_tasks).map(list))
names = some.lists(some.sampled_from(["n1", "n2", "n3", "_1", "_2", "_5", "_9", "n9"]), min_size=1, max_size=4)
specs = some.builds(
    QueueSpec,
    name=queues,
    max_leases=some.sampled_from([None, None, 1, 2]),
    max_lease_seconds=some.sampled_from([604_800.0, 12.0]),
    retry_min_seconds=some.sampled_from([0.0, 1.0]),
    retry_max_seconds=some.just(3.0),
    on_exhausted=some.sampled_from(["dead", "delete"]),
    name_retention_seconds=some.sampled_from([0.0, 4.0, 100.0]),
    history_keep=some.sampled_from([0, 3, 10_000]),
    history_seconds=some.sampled_from([86_400.0, 5.0]),
    lease_calls_per_second=some.sampled_from([None, 10]),
    user_emails=some.sampled_from([(), ("a@b", "ü@b")]),
    max_payload_bytes=some.sampled_from([MAX_PAYLOAD_BYTES, LARGEST_PAYLOAD_BYTES]),
    max_eta_seconds=some.sampled_from([MAX_ETA_SECONDS, FARTHEST_ETA_SECONDS]),
    label=some.sampled_from(["", "my_queue", "ü"]),
)


rates = some.sampled_from([None, None, Rate(1.0), Rate(3.0, burst=2), Rate(0.5, burst=4)])
bounds = some.sampled_from([None, None, 1, 2, 5])
limited_specs = some.builds(
    QueueSpec,
    name=queues,
    max_leases=some.sampled_from([None, 2]),
    on_exhausted=some.sampled_from(["dead", "delete"]),
    max_in_flight=some.sampled_from([None, None, None, 1, 4]),
    rate=some.sampled_from([None, None, None, Rate(2.0, burst=3)]),
    per_tag=some.builds(TagLimits, max_in_flight=bounds, rate=rates, fair=some.booleans()),
)


class StoreModel(RuleBasedStateMachine):
    """Drives both stores with one clock; the tokens of all leases ever granted are tried again."""

    def __init__(self, open_empty: Callable[[Path], list[Store]]) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.reference: Store = MemoryStore()
        self.stores = open_empty(Path(self.folder.name))
        self.store = self.stores[0]
        self.tokens: list[str] = []
        self.known_workers: tuple[str, ...] = WORKERS  # with a queue a store may forget its workers
        self.cursors = {store: dict.fromkeys(QUEUES, 0) for store in ("reference", "store")}
        self.steps = 0

    def teardown(self) -> None:
        found = [store.check() for store in self.stores]
        for store in self.stores:
            store.close()
        self.folder.cleanup()
        assert [each.problems for each in found] == [()] * len(found)

    def both(self, verb: Callable[[Transaction], object], *, how: Literal["write", "read"] = "write") -> object:
        """Run a verb on both stores; the outcomes, or the errors' classes, must be equal."""
        outcomes = []
        for store in (self.reference, self.store):
            with store.begin() if how == "write" else store.read() as transaction:
                try:
                    outcomes.append(verb(transaction))
                except QueueError as error:
                    outcomes.append(type(error))
        assert outcomes[0] == outcomes[1]
        return outcomes[0]

    def token(self, pick: int) -> str:
        return self.tokens[-1 - pick % len(self.tokens)] if self.tokens else "7.1"

    def keep(self, granted: object) -> None:
        self.tokens += [held.token for held in getattr(granted, "leases", ())]

    def the_next_process_goes_on(self) -> None:
        """Continue in the next process, if several have the store open."""
        self.store = self.stores[(self.stores.index(self.store) + 1) % len(self.stores)]

    @precondition(lambda self: len(self.stores) > 1)
    @rule()
    def another_process_goes_on(self) -> None:
        self.the_next_process_goes_on()

    # -- time -----------------------------------------------------------------------------------------------------

    @rule(seconds=some.sampled_from([MICROSECOND, 0.5, 1.0, 3.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(queue=queues, off=some.sampled_from([-MICROSECOND, 0.0, MICROSECOND]))
    def time_comes_to_the_next_eta(self, queue: str, off: float) -> None:
        due = self.both(lambda to: to.next_eta(queue, now=self.clock.now()))
        if isinstance(due, int) and due + off * 1e6 > self.clock.now():
            self.clock.advance((due - self.clock.now()) / 1e6 + off)

    @rule(seconds=some.sampled_from([-MICROSECOND, -2.0, -7.0]))
    def the_clock_is_stepped_back(self, seconds: float) -> None:
        self.clock.step(seconds)

    # -- queues ---------------------------------------------------------------------------------------------------

    @initialize()
    def queues_exist(self) -> None:
        for name in QUEUES:
            self.both(lambda to, name=name: to.put_queue(QueueSpec(name), now=self.clock.now()))

    @rule(spec=specs)
    def put_queue(self, spec: QueueSpec) -> None:
        self.both(lambda to: (to.put_queue(spec, now=self.clock.now()), to.queue(spec.name), to.queues()))

    @rule(queue=queues, paused=some.sampled_from(["paused", "running", "running"]))
    def set_paused(self, queue: str, paused: Literal["paused", "running"]) -> None:
        self.both(lambda to: (to.set_paused(queue, paused), to.queue(queue).paused))

    @precondition(lambda self: len(self.tokens) > 25)
    @rule(queue=queues)
    def delete_queue(self, queue: str) -> None:
        self.both(lambda to: to.delete_queue(queue))
        for cursors in self.cursors.values():
            cursors[queue] = 0
        self.known_workers = ()

    # -- tasks ----------------------------------------------------------------------------------------------------

    @rule(queue=queues, tasks=some_tasks)
    def add(self, queue: str, tasks: list[NewTask]) -> None:
        self.both(lambda to: to.add(queue, tasks, now=self.clock.now()))

    @rule(queue=queues, tag=some.sampled_from(TAGS), number=some.sampled_from([1, 1, 2, 50]))
    def add_one_by_one(self, queue: str, tag: str | None, number: int) -> None:
        for _ in range(number):
            self.both(lambda to: to.add(queue, [NewTask(b"alone", tag=tag)], now=self.clock.now()))

    @rule(
        queue=queues,
        count=some.sampled_from([1, 2, 10]),
        seconds=some.sampled_from([0.0, 1.0, 5.0, 13.0]),
        tags=filters,
        worker=some.sampled_from(WORKERS),
        allowance=rooms,
    )
    def lease(
        self,
        queue: str,
        count: int,
        seconds: float,
        tags: TagFilter,
        worker: str,
        allowance: PayloadAllowance | None,
    ) -> None:
        request = LeaseRequest(count, seconds, tags, worker, allowance)
        outcome = self.both(lambda to: to.lease(queue, request, now=self.clock.now()))
        self.keep(outcome)
        if allowance is not None and isinstance(outcome, Granted):
            payload_bytes = sum(len(lease.payload) for lease in outcome.leases)
            assert payload_bytes <= allowance.total_bytes or len(outcome.leases) <= allowance.least

    @rule(queue=queues, limit=some.integers(1, 8), payload_bytes=some.sampled_from([1, 2048, 4096]), total=totals)
    def show_a_bounded_page(self, queue: str, limit: int, payload_bytes: int, total: int) -> None:
        query = PeekQuery(ANY, frozenset(TaskState), None, 0, limit, payload_bytes, self.clock.now())
        page = self.both(lambda to: bounded_page(to, queue, query, total_bytes=total))
        if isinstance(page, Page):
            assert sum(len(task.payload) for task in page.tasks) <= total or len(page.tasks) == 1

    @rule(
        queue=queues,
        picks=some.lists(some.integers(0, 7), min_size=1, max_size=3),
        seconds=some.floats(0, 9),
        told=news,
    )
    def renew(self, queue: str, picks: list[int], seconds: float, told: tuple[Progress | None, bytes | None]) -> None:
        renewals = [Renewal(self.token(pick), seconds, *told) for pick in picks]
        self.both(lambda to: to.renew(queue, renewals, now=self.clock.now()))

    @rule(
        queue=queues,
        picks=some.lists(some.integers(0, 7), min_size=1, max_size=3),
        delay_seconds=delays,
        charge=some.sampled_from(["counted", "uncounted"]),
        reason=some.sampled_from(["", "", "bad input"]),
        jitter=some.sampled_from([0.0, 0.5]),
        failure=failures,
    )
    def release(
        self,
        queue: str,
        picks: list[int],
        delay_seconds: float | None,
        charge: Literal["counted", "uncounted"],
        reason: str,
        jitter: float,
        failure: Failure,
    ) -> None:
        releases = [Release(self.token(pick), delay_seconds, charge, reason, jitter, failure) for pick in picks]
        self.both(lambda to: to.release(queue, releases, now=self.clock.now()))

    @rule(
        queue=queues,
        picks=some.lists(some.integers(0, 7), min_size=1, max_size=3),
        then=some.one_of(some.just([]), some.just([]), next_tasks),
    )
    def delete(self, queue: str, picks: list[int], then: list[NewTask]) -> None:
        deletions = [Deletion(self.token(pick), tuple(then)) for pick in picks]
        self.both(lambda to: to.delete(queue, deletions, now=self.clock.now()))

    @rule(
        queue=queues,
        picks=some.lists(some.integers(0, 7), min_size=1, max_size=3),
        then=some.one_of(some.just([]), some.just([]), next_tasks),
        count=some.sampled_from([1, 1, 2]),
        tags=filters,
        worker=some.sampled_from(WORKERS),
    )
    def exchange(
        self, queue: str, picks: list[int], then: list[NewTask], count: int, tags: TagFilter, worker: str
    ) -> None:
        deletions = [Deletion(self.token(pick), tuple(then)) for pick in picks]
        request = LeaseRequest(count, 5.0, tags, worker)
        outcome = self.both(lambda to: to.exchange(queue, deletions, request, now=self.clock.now()))
        if isinstance(outcome, tuple):
            self.keep(outcome[1])

    @rule(
        queue=queues,
        tags=filters,
        number=some.sampled_from([2, 5, 60]),
        back=some.sampled_from([0, 0, 1]),
        who=some.sampled_from(["one", "one", "all by turns"]),
    )
    def exchange_one_for_one(self, queue: str, tags: TagFilter, number: int, back: int, who: str) -> None:
        for _ in range(number):
            deletion, request = Deletion(self.token(back)), LeaseRequest(1, 5.0, tags, WORKERS[0])
            outcome = self.both(
                lambda to, deletion=deletion, request=request: to.exchange(
                    queue, [deletion], request, now=self.clock.now()
                )
            )
            if isinstance(outcome, tuple):
                self.keep(outcome[1])
            self.clock.advance(MICROSECOND)  # samples of one instant are in any order
            if who == "all by turns":
                self.the_next_process_goes_on()

    @rule(queue=queues, names=names)
    def delete_by_name(self, queue: str, names: list[str]) -> None:
        self.both(lambda to: to.delete_by_name(queue, names, now=self.clock.now()))

    @rule(queue=queues, tags=filters, which=some.sampled_from(["alive", "dead", "dead"]))
    def purge(self, queue: str, tags: TagFilter, which: str) -> None:
        def verb(to: Transaction) -> int:
            purge = to.purge if which == "alive" else to.purge_dead
            return purge(queue, tags, limit=1000, now=self.clock.now())

        self.both(verb)

    @rule(queue=queues, tags=filters, names=some.one_of(some.none(), names))
    def redrive(self, queue: str, tags: TagFilter, names: list[str] | None) -> None:
        self.both(lambda to: changes.redrive(to, queue, names, tags, limit=1000, now=self.clock.now()))

    @rule(queue=queues, names=names, picks=some.lists(some.integers(0, 9), max_size=4), tag=some.sampled_from(TAGS))
    def retag(self, queue: str, names: list[str], picks: list[int], tag: str | None) -> None:
        now = self.clock.now()
        waiting = frozenset(TaskState) - {TaskState.LEASED}

        def found(to: Transaction) -> tuple[StoredTask, ...]:
            return to.peek(queue, ANY, waiting, limit=10, payload_bytes=0, now=now).tasks

        tasks = self.both(found)
        if isinstance(tasks, tuple) and tasks:
            names = [*names, *(tasks[pick % len(tasks)].shown_name for pick in picks)]
        self.both(lambda to: changes.retag(to, queue, names, tag, now=now))

    @rule(queue=queues, pick=some.integers(0, 9), off=some.sampled_from([0, 0, 0, 1]), seconds=some.floats(-2, 9))
    def postpone(self, queue: str, pick: int, off: int, seconds: float) -> None:
        now = self.clock.now()
        delayed = frozenset({TaskState.DELAYED})

        def found(to: Transaction) -> tuple[StoredTask, ...]:
            return to.peek(queue, ANY, delayed, limit=10, payload_bytes=0, now=now).tasks

        tasks = self.both(found)
        name, expected = "n1", now
        if isinstance(tasks, tuple) and tasks:
            task = tasks[pick % len(tasks)]
            name, expected = task.shown_name, Instant(task.eta + off)
        self.both(lambda to: to.postpone(queue, name, expected=expected, eta=after(now, seconds), now=now))

    @rule(
        queue=queues,
        pick=some.integers(0, 9),
        off=some.sampled_from([0, 0, 0, 1]),
        worker=some.sampled_from(WORKERS),
        seconds=some.one_of(some.none(), some.floats(0, 9)),
    )
    def lease_delayed(self, queue: str, pick: int, off: int, worker: str, seconds: float | None) -> None:
        now = self.clock.now()

        def found(to: Transaction) -> tuple[StoredTask, ...]:
            return to.peek(queue, ANY, frozenset({TaskState.DELAYED}), limit=10, payload_bytes=0, now=now).tasks

        tasks = self.both(found)
        task_id, expected = 1, now
        if isinstance(tasks, tuple) and tasks:
            task = tasks[pick % len(tasks)]
            task_id, expected = task.id, Instant(task.eta + off)
        held = self.both(
            lambda to: to.lease_delayed(queue, task_id, expected=expected, worker=worker, seconds=seconds, now=now)
        )
        if isinstance(held, Lease):
            self.tokens.append(held.token)

    # -- supervisors ----------------------------------------------------------------------------------------------

    @rule(worker=some.sampled_from(WORKERS[2:]), busy=some.sampled_from(["keep", "finish"]))
    def retire_worker(self, worker: str, busy: Literal["keep", "finish"]) -> None:
        now = self.clock.now()
        self.both(lambda to: (to.retire_worker(worker, busy=busy, now=now), set(to.workers_seen(self.known_workers))))

    @rule(worker=some.sampled_from(WORKERS[2:]), failure=some.sampled_from([WORKER_DIED, KILLED]))
    def release_worker(self, worker: str, failure: Failure) -> None:
        self.both(lambda to: to.release_worker(worker, failure=failure, now=self.clock.now()))

    @rule(holder=some.sampled_from(["h1", "h2"]), seconds=some.sampled_from([0.0, 3.0]))
    def lead(self, holder: str, seconds: float) -> None:
        self.both(lambda to: to.lead("fleet", holder, seconds=seconds, now=self.clock.now()))

    # -- looking --------------------------------------------------------------------------------------------------

    @rule(
        queue=queues,
        tags=filters,
        states=some.sets(some.sampled_from(list(TaskState)), min_size=1),
        limit=some.integers(1, 4),
    )
    def look(self, queue: str, tags: TagFilter, states: set[TaskState], limit: int) -> None:
        """A snapshot before expired leases are settled must equal the reference's after settling."""
        now = self.clock.now()

        def verb(to: Transaction) -> object:
            return (
                to.live_leases(queue, limit=3, now=now),
                to.peek(queue, tags, frozenset(states), limit=limit, payload_bytes=1, now=now),
                to.peek(queue, tags, frozenset(states), after=3, limit=limit, payload_bytes=9999, now=now),
                to.peek(queue, tags, frozenset(states), names=["n1", "_2"], limit=5, payload_bytes=1, now=now),
                to.stats(queue, tags, now=now),
                to.tag_stats(queue, after=None, limit=3, now=now),
                to.tag_stats(queue, after="a", limit=3, now=now),
                to.waiting(queue, tags, now=now),
                to.upcoming(queue, tags, until=after(now, 30), limit=500, now=now),
            )

        # The reference settles for good when it looks; so that a clock stepped back finds both alike, settle both.
        self.both(verb, how="read")
        self.both(lambda to: (to.expire(queue, limit=500, now=now), None)[1])
        self.both(verb)

    @rule(queue=queues, limit=some.integers(1, 4))
    def samples(self, queue: str, limit: int) -> None:
        self.both(lambda to: (to.expire(queue, limit=500, now=self.clock.now()), None)[1])
        seen: list[object] = []
        for store, cursors in zip((self.reference, self.store), self.cursors.values(), strict=True):
            try:
                with store.read() as transaction:
                    found = transaction.samples(queue, after=cursors[queue], limit=limit)
            except QueueError as error:
                seen.append(type(error))
                continue
            cursors[queue] = found.cursor  # its contents are private to the store
            seen.append((found.finished, found.missed))
        assert seen[0] == seen[1]

    @rule(queue=queues, named=some.sampled_from([None, ["n1", "_2"]]), limit=some.integers(1, 4))
    def history(self, queue: str, named: list[str] | None, limit: int) -> None:
        now = self.clock.now()
        self.both(lambda to: (to.expire(queue, limit=500, now=now), None)[1])
        pages = [None, None]
        for _ in range(3):
            seen: list[object] = []
            for at, store in enumerate((self.reference, self.store)):
                try:
                    with store.read() as transaction:
                        found = transaction.history(queue, names=named, before=pages[at], limit=limit, now=now)
                except QueueError as error:
                    seen.append(type(error))
                    continue
                pages[at] = found.next_before  # its contents are private to the store
                seen.append((found.leases, found.next_before is None))
            assert seen[0] == seen[1]
            if None in pages:
                return

    @precondition(lambda self: self.store.unit == "transaction")
    @rule(queue=queues, tasks=some_tasks)
    def a_transaction_that_fails_changes_nothing(self, queue: str, tasks: list[NewTask]) -> None:
        with pytest.raises(ZeroDivisionError), self.store.begin() as transaction:
            transaction.put_queue(QueueSpec("never"), now=self.clock.now())
            transaction.add("never", [NewTask(tag="never")], now=self.clock.now())
            transaction.lease("never", LeaseRequest(1, 1.0, TagFilter(), "w9"), now=self.clock.now())
            raise ZeroDivisionError
        if self.store.is_remote:  # ids used by the rolled-back add are not used again
            with self.reference.begin() as transaction:
                transaction.put_queue(QueueSpec("never"), now=self.clock.now())
                transaction.add("never", [NewTask()], now=self.clock.now())
                transaction.delete_queue("never")

    @invariant()
    def nothing_is_stored_twice(self) -> None:
        """Check this after some rules only: the check itself may expire leases that the next verb should find."""
        self.steps += 1
        if self.steps % 3:
            return
        self.both(lambda to: [to.next_eta(spec.name, now=self.clock.now()) for spec in to.queues()], how="read")


class LimitedStoreModel(StoreModel):
    """The same with limits of queues and tags. A look comes after what is due was settled: until then, tasks that time
    made leasable are READY to a look, whichever of them limits will hold."""

    @initialize()
    def queues_have_limits(self) -> None:
        for name in QUEUES:
            spec = QueueSpec(name, per_tag=TagLimits(2, Rate(2.0, burst=3), fair=name == "two"))
            self.both(lambda to, spec=spec: to.put_queue(spec, now=self.clock.now()))

    @rule(spec=limited_specs)
    def limit_queue(self, spec: QueueSpec) -> None:
        self.both(lambda to: (to.put_queue(spec, now=self.clock.now()), to.queue(spec.name)))

    def both(self, verb: Callable[[Transaction], object], *, how: Literal["write", "read"] = "write") -> object:
        if how == "read":
            now = self.clock.now()
            super().both(lambda to: [to.expire(spec.name, limit=500, now=now)[1] for spec in to.queues()])
        return super().both(verb, how=how)
