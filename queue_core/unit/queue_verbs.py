"""The verbs of one queue beside the hot ones (ADR 133). Each takes the queue's name first."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from queue_core import events, limits, semantics
from queue_core.clock import Instant
from queue_core.stats import History, QueueStats, TagStats, TaskRemoval
from queue_core.task import ALL_STATES, ANY, StoredTask, TagFilter, TaskState
from queue_core.unit.verb import Change, ChangeTasks, Query
from queue_core.verbs import NameOutcome, Page, answers, roles, wire
from queue_core.verbs.change_verbs import PIECE_TASKS, InStates, Selector, named
from queue_core.verbs.validation import check_filter
from queue_core.verbs.wire import Json

if TYPE_CHECKING:
    from queue_core.unit.unit_of_work import UnitOfWork


@dataclass(frozen=True, slots=True)
class DeleteByName(Change[list[NameOutcome]]):
    """Delete tasks without checking their leases."""

    path = "/v1/queues/{queue}/delete-by-name"
    summary = "Delete tasks by name, leased or not."
    operation = "delete_by_name"
    permission, role, access = "delete-by-name", roles.ADMINISTER, "delete"
    request = ("NamesRequest", "Tasks by name.")
    answers = answers.NameOutcomes
    audit = "delete"

    queue: str
    names: list[str]

    def run(self, work: "UnitOfWork", by: str) -> list[NameOutcome]:
        return work.delete_by_name(self.queue, self.names, removal=TaskRemoval(f"deleted by {by}"))

    def audit_facts(self, result: list[NameOutcome]) -> Mapping[str, object] | None:
        deleted = result.count("deleted")
        return {"tasks": deleted} if deleted else None


@dataclass(frozen=True, slots=True)
class Purge(Change[int]):
    """Delete all tasks of these tags except dead ones, or only dead ones."""

    path = "/v1/queues/{queue}/purge"
    summary = "Delete all tasks, or all dead ones."
    operation = audit = "purge"
    permission, role, access = "purge", roles.ADMINISTER, "delete"
    request = ("PurgeRequest", "The tasks to delete.")
    answers = answers.Count
    in_pieces = True

    queue: str
    tags: TagFilter = ANY
    dead: Literal["keep", "only"] = "keep"

    def check(self) -> None:
        check_filter(self.tags)

    def run(self, work: "UnitOfWork", by: str) -> int:
        return work.purge(self.queue, self.tags, dead=self.dead, removal=TaskRemoval(f"purged by {by}"))


@dataclass(frozen=True, slots=True)
class Pause(Change[bool]):
    """Grant no more leases on a queue; adds and deletes go on."""

    path = "/v1/queues/{queue}/pause"
    summary = "Grant no more leases."
    operation = audit = "pause"
    permission, role, access = "pause", roles.OPERATE, "update"
    answers = answers.Done

    queue: str

    def run(self, work: "UnitOfWork", _by: str) -> bool:
        return work.set_paused(self.queue, "paused")

    def sentence(self, _result: object, _now: Instant) -> str:
        return f"queue {self.queue} is paused: workers get no tasks from it until it is resumed"


@dataclass(frozen=True, slots=True)
class Resume(Change[bool]):
    """Grant leases on a queue again."""

    path = "/v1/queues/{queue}/resume"
    summary = "Grant leases again."
    operation = audit = "resume"
    permission, role, access = "resume", roles.OPERATE, "update"
    answers = answers.Done

    queue: str

    def run(self, work: "UnitOfWork", _by: str) -> bool:
        return work.set_paused(self.queue, "running")

    def sentence(self, _result: object, _now: Instant) -> str:
        return f"queue {self.queue} resumed"


@dataclass(frozen=True, slots=True)
class Redrive(ChangeTasks):
    """Make dead tasks of a queue ready again, with none of their leases counted."""

    path = "/v1/queues/{queue}/redrive"
    summary = "Make dead tasks ready."
    operation = audit = "redrive"
    permission, role, access = "redrive", roles.OPERATE, "update"
    request = ("RedriveRequest", "Dead tasks, by name or by tag.")
    answers = answers.Count
    event = events.TASK_REDRIVEN

    tags: TagFilter = ANY
    names: list[str] | None = None

    @property
    def in_pieces(self) -> bool:
        return self.names is None

    def check(self) -> None:
        check_filter(self.tags)
        if self.names is not None:
            limits.check_known_names(self.names)

    def selector(self) -> Selector:
        if self.names is not None:
            return named(self.names, depth="whole")
        return InStates((TaskState.DEAD,), self.tags, PIECE_TASKS, depth="whole")

    def transition(self, task: StoredTask, *, now: Instant) -> StoredTask:
        return semantics.redrive(task, now=now) if task.state is TaskState.DEAD else task

    def sentence(self, result: int, _now: Instant) -> str:
        return f"{result:,} ready again"


@dataclass(frozen=True, slots=True)
class Retag(ChangeTasks):
    """Change the tag of those of the named tasks that are not leased and have another; None: they have no tag then."""

    event = events.TASK_RETAGGED

    names: list[str]
    new_tag: str | None

    def check(self) -> None:
        limits.check_known_names(self.names)
        if self.new_tag is not None:
            limits.check_tag(self.new_tag)

    def selector(self) -> Selector:
        return named(self.names)

    def transition(self, task: StoredTask, *, now: Instant) -> StoredTask:
        stays = task.state is TaskState.LEASED or task.tag == self.new_tag
        return task if stays else semantics.retag(task, tag=self.new_tag, now=now)


@dataclass(frozen=True, slots=True)
class ReadStats(Query[QueueStats]):
    """Return the present counts and the totals."""

    method = "GET"
    path = "/v1/queues/{queue}/stats"
    summary = "Return counts and totals of a queue."
    operation = "stats"
    permission, role, access = "stats", roles.READ, "look"
    answers = QueueStats

    queue: str
    tags: TagFilter = ANY

    def check(self) -> None:
        check_filter(self.tags)

    def run(self, work: "UnitOfWork") -> QueueStats:
        return work.stats(self.queue, self.tags)


@dataclass(frozen=True, slots=True)
class ReadTagStats(Query[list[TagStats]]):
    """Return counts per tag, a page at a time."""

    method = "GET"
    path = "/v1/queues/{queue}/tags"
    summary = "Return counts of each tag."
    operation = "tag_stats"
    permission, role, access = "stats", roles.READ, "look"
    answers = answers.TagCounts

    queue: str
    after: str | None = None
    limit: int = 100

    def check(self) -> None:
        if self.after is not None:
            limits.check_tag(self.after)
        limits.check_page(self.limit)

    def run(self, work: "UnitOfWork") -> list[TagStats]:
        return work.tag_stats(self.queue, after=self.after, limit=self.limit)

    @classmethod
    def result_of(cls, answer: Json) -> list[TagStats]:
        return wire.tag_stats_of(answer["tags"])


@dataclass(frozen=True, slots=True)
class Peek(Query[Page]):
    """Return tasks without leasing them; payloads are cut to `payload_bytes`."""

    path = "/v1/queues/{queue}/peek"
    summary = "Show tasks."
    operation = "peek"
    permission, role, access = "peek", roles.INSPECT, "list"

    queue: str
    tags: TagFilter = ANY
    states: frozenset[TaskState] = ALL_STATES
    names: list[str] | None = None
    after: int = 0
    limit: int = 100
    payload_bytes: int = 0

    def check(self) -> None:
        check_filter(self.tags)
        limits.check_page(self.limit, after=self.after, payload_bytes=self.payload_bytes)

    def run(self, work: "UnitOfWork") -> Page:
        return work.peek(
            self.queue,
            tags=self.tags,
            states=self.states,
            names=self.names,
            after=self.after,
            limit=self.limit,
            payload_bytes=self.payload_bytes,
        )

    @classmethod
    def result_of(cls, answer: Json) -> Page:
        return wire.page_of(answer)


@dataclass(frozen=True, slots=True)
class ReadHistory(Query[History]):
    """Return ended leases, newest first: of all tasks, or of these; finished tasks are found by them too."""

    path = "/v1/queues/{queue}/history"
    summary = "Show ended leases."
    operation = "history"
    permission, role, access = "history", roles.INSPECT, "list"
    request = ("HistoryRequest", "The ended leases to show: of all tasks, or of those named.")
    answers = answers.LeaseHistory

    queue: str
    names: list[str] | None = field(default=None, metadata={"description": "Of tasks, or ids that Celery gave them."})
    before: int | None = field(
        default=None, metadata={"ge": 0, "le": limits.MAX_INTEGER, "description": "`next_before` of the page before."}
    )
    limit: int = field(default=100, metadata={"description": f"In [1, {limits.MAX_PEEK_TASKS}].", "examples": [100]})

    def check(self) -> None:
        limits.check_page(self.limit)
        if self.before is not None:
            limits.check_cursor(self.before, name="before")

    def run(self, work: "UnitOfWork") -> History:
        return work.history(self.queue, names=self.names, before=self.before, limit=self.limit)

    @classmethod
    def result_of(cls, answer: Json) -> History:
        return wire.history_of(answer)

    @classmethod
    def answer_of(cls, result: History) -> object:
        return {"leases": list(result.leases), "next_before": result.next_before}


SERVED: Final = (DeleteByName, Purge, Pause, Resume, Redrive, ReadHistory, ReadStats, ReadTagStats)
"""Those that a server serves as they say: one that is added here needs no other line at the server."""
OTHERS: Final = (Peek,)
"""Those of whose endpoints the server knows a part."""
