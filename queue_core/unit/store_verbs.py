"""The verbs of a whole store, beside the hot ones (ADR 133): its queues, its size, its workers and its leaders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from queue_core import limits
from queue_core.attempts.attempt import WORKER_DIED, Failure
from queue_core.errors import InvalidQueueNameError
from queue_core.stats import FinishedLease
from queue_core.task import ANY, QueueSpec, TagFilter
from queue_core.unit.verb import Change, Query
from queue_core.verbs import Busy, Observation, ObservationQuery, Storage, answers, kept, roles, wire
from queue_core.verbs.validation import check_filter, check_storage_limit
from queue_core.verbs.wire import Json

if TYPE_CHECKING:
    from queue_core.unit.unit_of_work import UnitOfWork


@dataclass(frozen=True, slots=True)
class PutQueue(Change[bool]):
    """Create the queue or replace its settings; True when created."""

    method = "PUT"
    path = "/v1/queues/{queue}"
    permission, role, access = "declare-queue", roles.WORK, "update"
    answers = answers.Created

    queue: str
    spec: QueueSpec

    def run(self, work: "UnitOfWork", _by: str) -> bool:
        return work.put_queue(self.spec)

    def body(self) -> Json:
        return wire.settings_json(self.spec)


@dataclass(frozen=True, slots=True)
class DeleteQueue(Change[int]):
    """Drop a queue and its tasks; return the number of tasks."""

    method = "DELETE"
    path = "/v1/queues/{queue}"
    summary = "Delete a queue and its tasks."
    operation = "delete_queue"
    permission, role, access = "set-queue", roles.ADMINISTER, "update"
    answers = answers.Count
    audit = "delete queue"
    handles_payloads = True

    queue: str

    def run(self, work: "UnitOfWork", _by: str) -> int:
        limits.check_text("queue", self.queue, error=InvalidQueueNameError)
        return work.transaction.delete_queue(self.queue)


@dataclass(frozen=True, slots=True)
class ListQueues(Query[list[QueueSpec]]):
    """Return all queues, ordered by name."""

    method = "GET"
    path = "/v1/queues"
    permission, role, access = "queues", roles.READ, "look"
    answers = answers.QueueListReply

    def run(self, work: "UnitOfWork") -> list[QueueSpec]:
        return work.transaction.queues()

    @classmethod
    def result_of(cls, answer: Json) -> list[QueueSpec]:
        return wire.queues_of(answer["queues"])


@dataclass(frozen=True, slots=True)
class ReadStorage(Query[Storage]):
    """Return the limit on the payload bytes of all tasks, and the bytes in use."""

    method = "GET"
    path = "/v1/storage"
    summary = "Return the limit on all payloads and their size; without a limit they are not counted."
    operation = "show_storage"
    permission, role, access = "queues", roles.READ, "look"
    whole_store = "the size of the store"
    answers = Storage

    def run(self, work: "UnitOfWork") -> Storage:
        return work.transaction.storage()


@dataclass(frozen=True, slots=True)
class LimitStorage(Change[None]):
    """Set the limit on the payload bytes of all tasks; None: no limit."""

    method = "PUT"
    path = "/v1/storage"
    summary = "Limit the payloads of all tasks together."
    operation = "set_storage"
    permission, role, access = "set-queue", roles.ADMINISTER, "update"
    whole_store = "the limit of the store"
    request = ("StorageLimit", "The limit on the payloads of all tasks.")
    answers = answers.Done
    audit = "limit storage"

    limit_bytes: int | None = field(
        metadata={"ge": 0, "le": limits.MAX_STORAGE_BYTES, "description": "null: no limit."}
    )

    def check(self) -> None:
        check_storage_limit(self.limit_bytes)

    def run(self, work: "UnitOfWork", _by: str) -> None:
        work.set_storage_limit(self.limit_bytes)

    def audit_facts(self, _result: None) -> Mapping[str, object]:
        return {"limit_bytes": self.limit_bytes}


@dataclass(frozen=True, slots=True)
class RetireWorker(Change[bool]):
    """Fence a worker: it gets no more leases. False when it holds a lease."""

    path = "/v1/workers/{worker}/retire"
    summary = "Fence a worker: it is granted no more leases."
    operation = "retire_worker"
    permission, role = "workers", roles.ADMINISTER
    request = ("RetireRequest", "A worker that holds a lease: keep it, or let it finish its leases and get no more.")
    answers = answers.Retired

    worker: str
    busy: Busy = "keep"

    def run(self, work: "UnitOfWork", _by: str) -> bool:
        return work.retire_worker(self.worker, busy=self.busy)


@dataclass(frozen=True, slots=True)
class ReleaseWorker(Change[list[FinishedLease]]):
    """Give back at once all leases that a dead worker holds; `failure`: the facts of its end."""

    path = "/v1/workers/{worker}/release"
    summary = "Release all leases of a dead worker."
    operation = "release_worker"
    permission, role = "workers", roles.ADMINISTER
    answers = answers.ReleasedLeases

    worker: str
    failure: Failure = WORKER_DIED

    def run(self, work: "UnitOfWork", _by: str) -> list[FinishedLease]:
        return work.release_worker(self.worker, failure=self.failure)

    def body(self) -> Json:
        return {} if self.failure == WORKER_DIED else {"failure": wire.failure_json(self.failure)}

    @classmethod
    def result_of(cls, answer: Json) -> list[FinishedLease]:
        return wire.many_of(FinishedLease, answer["released"])


@dataclass(frozen=True, slots=True)
class Lead(Change[bool]):
    """Take or keep the lead called `name` for `seconds`; False while another holder has it."""

    path = "/v1/lead"
    summary = "Take or keep a lead."
    operation = "lead"
    permission, role = "lead", roles.ADMINISTER
    request = ("LeadRequest", "A lead, and its holder.")
    answers = answers.Held

    name: str = field(metadata={"min_length": 1, "max_length": limits.MAX_WORKER_CHARACTERS})
    holder: str = field(metadata={"min_length": 1, "max_length": limits.MAX_WORKER_CHARACTERS})
    seconds: float = field(metadata={"ge": 0, "le": limits.MAX_LEASE_SECONDS})

    def check(self) -> None:
        limits.check_lifetime_seconds("seconds of a lead", self.seconds)

    def run(self, work: "UnitOfWork", _by: str) -> bool:
        return work.lead(self.name, self.holder, seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class Keep(Change[None]):
    """Keep a text of this store's supervisors under one of `kept.NAMES`, in place of the earlier one, for good."""

    method = "PUT"
    path = "/v1/kept/{name}"
    summary = "Keep a text of the supervisors, in place of the earlier one."
    operation = "keep"
    permission, role = "keep", roles.ADMINISTER
    request = ("KeepRequest", "A text that the supervisors of this store share.")
    answers = answers.Done
    tries = 5

    name: str
    text: str = field(metadata={"max_length": kept.MAX_KEPT_BYTES})

    def check(self) -> None:
        kept.check_kept(self.name, self.text)

    def run(self, work: "UnitOfWork", _by: str) -> None:
        self.check()
        last = work.transaction.last_answer(kept.session_of(self.name))
        number = last[0] + 1 if last else 1
        work.transaction.keep_answer(
            kept.session_of(self.name), number, self.text.encode(), now=work.now, kept="always"
        )


@dataclass(frozen=True, slots=True)
class ReadKept(Query[str | None]):
    """Return the text that is kept under this name; None: there is none."""

    method = "GET"
    path = "/v1/kept/{name}"
    summary = "Return a text that the supervisors keep."
    operation = "show_kept"
    permission, role = "keep", roles.ADMINISTER
    answers = answers.KeptText

    name: str

    def run(self, work: "UnitOfWork") -> str | None:
        kept.check_kept(self.name)
        last = work.transaction.last_answer(kept.session_of(self.name))
        return last[1].decode() if last else None


@dataclass(frozen=True, slots=True)
class Observe(Query[Observation]):
    """Return the input of a scaling decision in one round trip; `after` is the last observation's cursor."""

    path = "/v1/queues/{queue}/observe"
    summary = "Return what scaling a pool needs: counts, leases, samples, workers."
    operation = "observe"
    answers = Observation
    permission, role, access = "observe", roles.INSPECT, "list"

    queue: str
    tags: TagFilter = ANY
    after: int = 0
    workers: tuple[str, ...] = ()
    ahead_seconds: float = 0.0

    def check(self) -> None:
        check_filter(self.tags)
        limits.check_cursor(self.after)
        limits.check_ahead_seconds(self.ahead_seconds)

    def run(self, work: "UnitOfWork") -> Observation:
        limits.check_text("queue", self.queue, error=InvalidQueueNameError)
        return work.observe(
            self.queue, tags=self.tags, after=self.after, workers=self.workers, ahead_seconds=self.ahead_seconds
        )

    @classmethod
    def result_of(cls, answer: Json) -> Observation:
        return wire.observation_of(answer)


@dataclass(frozen=True, slots=True)
class ObserveMany(Query[list[Observation | None]]):
    """Return observations of up to 1000 queues in one round trip; None for a queue that does not exist."""

    path = "/v1/observe"
    permission, role, access = "observe", roles.INSPECT, "list"

    queries: Sequence[ObservationQuery]

    def run(self, work: "UnitOfWork") -> list[Observation | None]:
        return [work.observe_if_exists(query) for query in self.queries]

    def body(self) -> Json:
        return {"looks": [wire.query_json(query) for query in self.queries]}

    @classmethod
    def result_of(cls, answer: Json) -> list[Observation | None]:
        found = cast("list[Json | None]", answer["observations"])
        return [None if one is None else wire.observation_of(one) for one in found]


SERVED: Final = (DeleteQueue, ReadStorage, LimitStorage, RetireWorker, ReleaseWorker, Lead, Keep, ReadKept)
"""Those that a server serves as they say."""
OTHERS: Final = (PutQueue, ListQueues, Observe, ObserveMany)
"""Those whose endpoints are written by hand."""
