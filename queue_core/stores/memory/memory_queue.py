"""One queue of the reference store: its tasks, names, totals and finished leases."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from queue_core import semantics
from queue_core.clock import Instant, after
from queue_core.limits import check_eta
from queue_core.semantics import LeaseEnd
from queue_core.stats import (
    FinishedLease,
    History,
    LiveLease,
    QueueStats,
    Samples,
    TagStats,
    WaitingTask,
    sample_waiting,
)
from queue_core.task import UNTAGGED, NewTask, QueueSpec, StoredTask, TagFilter, TaskState, parse_token
from queue_core.verbs import Added, HeldName, Page

KEPT_SAMPLES = 10_000
"""Finished leases kept of each queue, at least; more where its history is longer."""
MAX_WAITING_READ = 1000
"""Etas of ready tasks that `waiting` reads at most."""

_CHANGED_BY_TIME = (TaskState.DELAYED, TaskState.LEASED)


@dataclass(slots=True)
class MemoryQueue:
    """A queue as dicts of values. Methods take `now`, and expire what is due where they change tasks."""

    spec: QueueSpec
    tasks: dict[int, StoredTask] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    tombstones: dict[str, Instant] = field(default_factory=dict)
    totals: dict[str | None, dict[str, int]] = field(default_factory=dict)
    samples: list[FinishedLease] = field(default_factory=list)
    samples_dropped: int = 0

    def put(self, task: StoredTask) -> None:
        """Store the task as it is now."""
        self.tasks[task.id] = task

    def count(self, tag: str | None, total: str) -> None:
        """Increment one of the tag's totals."""
        of_tag = self.totals.setdefault(tag, {})
        of_tag[total] = of_tag.get(total, 0) + 1

    def add(self, new: NewTask, *, task_id: int, now: Instant) -> Added:
        """Add a task unless its name is taken."""
        if new.name in self.names:
            self._expire_used_up(self.tasks[self.names[new.name]], now=now)
        refused = self._refused(new.name, now=now)
        return refused or self._keep(semantics.add(new, task_id=task_id, queue=self.spec.name, now=now))

    def _expire_used_up(self, task: StoredTask, *, now: Instant) -> None:
        """Delete the task if its last lease has expired: its name is then tombstoned."""
        expired = semantics.expire(task, self.spec, now=now)
        if isinstance(expired, LeaseEnd) and expired.task is None:
            self.end(task, expired)

    def restore(self, moved: StoredTask, *, task_id: int, now: Instant) -> Added:
        """Add a task as another store had it, unless its name is taken."""
        refused = self._refused(moved.name, now=now)
        return refused or self._keep(semantics.restore(moved, task_id=task_id, queue=self.spec.name, now=now))

    def _refused(self, name: str | None, *, now: Instant) -> Added | None:
        if name is None:
            return None
        if name in self.names:
            return Added(name, "exists")
        return Added(name, "tombstoned") if self.tombstones.get(name, now) > now else None

    def _keep(self, task: StoredTask) -> Added:
        self.put(task)
        if task.name is not None:
            self.tombstones.pop(task.name, None)
            self.names[task.name] = task.id
        self.count(task.tag, "added")
        return Added(task.shown_name, "added", task.state is TaskState.READY)

    def hold_name(self, held: HeldName, *, now: Instant) -> None:
        """Refuse adds under a name that no task has until `held.until`, or longer if it is tombstoned already."""
        if held.name not in self.names and held.until > now:
            self.tombstones[held.name] = max(held.until, self.tombstones.get(held.name, now))

    def drop(self, task: StoredTask, *, at: Instant) -> None:
        """Delete the task; a given name stays taken for its retention."""
        del self.tasks[task.id]
        if task.name is not None:
            del self.names[task.name]
            self.tombstones[task.name] = after(at, self.spec.name_retention_seconds)

    def end(self, task: StoredTask, ending: LeaseEnd) -> FinishedLease:
        """Apply the end of a lease, and record it."""
        if ending.task is None:
            self.drop(task, at=ending.finished.ended_at)
        else:
            self.put(ending.task)
        self.count(task.tag, ending.finished.outcome)
        if ending.finished.died:
            self.count(task.tag, "died")
        self.samples.append(ending.finished)
        overflow = len(self.samples) - max(KEPT_SAMPLES, self.spec.history_keep)
        if overflow > 0:
            del self.samples[:overflow]
            self.samples_dropped += overflow
        return ending.finished

    def postpone(self, name: str, *, expected: Instant, eta: Instant, now: Instant) -> bool:
        """Move the eta of a named DELAYED task that is not due, if it is `expected`."""
        check_eta(eta, now=now)
        task = self.named(name)
        if task is None or not semantics.is_delayed_until(task, expected, now=now):
            return False
        self.put(semantics.postpone(task, eta=eta, now=now))
        return True

    def bring_forward(self, *, until: Instant, now: Instant) -> None:
        """Move the etas of DELAYED tasks that lie between `now` and `until` to `now`."""
        for task in list(self.tasks.values()):
            if task.state is TaskState.DELAYED and now < task.eta <= until:
                self.put(replace(task, eta=now, ready_at=now))

    def expire(self, *, now: Instant) -> list[FinishedLease]:
        """Expire every due task, in eta order; return the leases that ended."""
        due = sorted(
            (task for task in self.tasks.values() if semantics.is_due(task, now=now)),
            key=lambda task: (task.eta, task.id),
        )
        ended = []
        for task in due:
            expired = semantics.expire(task, self.spec, now=now)
            if isinstance(expired, LeaseEnd):
                ended.append(self.end(task, expired))
            else:
                self.put(expired)
        return ended

    def as_of(self, now: Instant) -> Iterator[StoredTask]:
        """Yield every task as it is at `now`, without changing any."""
        for task in list(self.tasks.values()):
            expired = semantics.expire(task, self.spec, now=now)
            shown = expired.task if isinstance(expired, LeaseEnd) else expired
            if shown is not None:
                yield shown

    def current(self, token: str, *, now: Instant) -> StoredTask | None:
        """Return the task whose live lease the token names."""
        task_id, leased_at = parse_token(token)
        task = self.tasks.get(task_id)
        return task if task is not None and semantics.is_current(task, leased_at, now=now) else None

    def named(self, name: str) -> StoredTask | None:
        """Return the task of a given or a chosen name."""
        if name in self.names:
            return self.tasks[self.names[name]]
        digits = name[1:]
        if not (name.startswith("_") and digits.isascii() and digits.isdigit() and len(digits) <= 18):
            return None
        task = self.tasks.get(int(digits))
        return task if task is not None and task.name is None else None

    def ready(self, tags: TagFilter) -> list[StoredTask]:
        """Return READY tasks that the filter accepts, in lease order; for `oldest`, those of one tag."""
        ready = [task for task in self.tasks.values() if task.state is TaskState.READY and tags.accepts(task.tag)]
        ready.sort(key=lambda task: (task.eta, task.id))
        if tags.kind == "oldest" and ready:
            return [task for task in ready if task.tag == ready[0].tag]
        return ready

    def leased_by(self, worker: str) -> list[StoredTask]:
        """Return LEASED tasks of a worker, expired or not."""
        return [task for task in self.tasks.values() if task.state is TaskState.LEASED and task.worker == worker]

    def stats(self, tags: TagFilter, *, now: Instant) -> QueueStats:
        """Return the counts and totals of the tags that the filter accepts."""
        self.expire(now=now)
        tasks = [task for task in self.tasks.values() if tags.accepts(task.tag)]
        states = [task.state for task in tasks]
        totals: dict[str, int] = {}
        for tag, of_tag in self.totals.items():
            if tags.accepts(tag):
                for total, count in of_tag.items():
                    totals[f"{total}_total"] = totals.get(f"{total}_total", 0) + count
        return QueueStats(
            self.spec.name,
            states.count(TaskState.READY),
            states.count(TaskState.DELAYED),
            states.count(TaskState.LEASED),
            states.count(TaskState.DEAD),
            min((task.eta for task in tasks if task.state is TaskState.READY), default=None),
            paused=self.spec.is_closed,
            as_of=None,  # set by the service
            **totals,
        )

    def samples_after(self, after: int, *, limit: int) -> Samples:
        """Return finished leases beyond a cursor, as far as they are kept."""
        first = max(after, self.samples_dropped) - self.samples_dropped
        finished = tuple(self.samples[first : first + limit])
        cursor = self.samples_dropped + first + len(finished)
        return Samples(finished, cursor, missed=after < self.samples_dropped)

    def history(self, *, names: Sequence[str] | None, before: int | None, limit: int, now: Instant) -> History:
        """See `Transaction.history`."""
        kept = self.samples[max(0, len(self.samples) - self.spec.history_keep) :] if self.spec.history_keep else []
        last = self.samples_dropped + len(self.samples)
        oldest_at = after(now, -self.spec.history_seconds)
        found: list[FinishedLease] = []
        for number, lease in zip(range(last, 0, -1), reversed(kept), strict=False):
            if (before is not None and number >= before) or lease.ended_at < oldest_at:
                continue
            if names is not None and lease.name not in names:
                continue
            if len(found) == limit:
                return History(tuple(found), number + 1)
            found.append(lease)
        return History(tuple(found))

    def peek(
        self,
        tags: TagFilter,
        states: frozenset[TaskState],
        *,
        names: Sequence[str] | None,
        after: int,
        limit: int,
        payload_bytes: int,
        now: Instant,
    ) -> Page:
        """See `Transaction.peek`."""
        shown = [
            replace(task, payload=task.payload[:payload_bytes])
            for task in self.as_of(now)
            if task.id > after
            and task.state in states
            and tags.accepts(task.tag)
            and (names is None or task.shown_name in names)
        ]
        shown.sort(key=lambda task: task.id)
        return Page(tuple(shown[:limit]), shown[limit - 1].id if len(shown) > limit else None)

    def tag_stats(self, *, after: str | None, limit: int, now: Instant) -> list[TagStats]:
        """See `Transaction.tag_stats`."""
        tags = sorted({tag for tag in self.totals if tag is not None and (after is None or tag > after)})
        listed: list[str | None] = [None] if after is None and None in self.totals else []
        return [
            TagStats(tag, self.stats(UNTAGGED if tag is None else TagFilter.of(tag), now=now))
            for tag in (*listed, *tags)[:limit]
        ]

    def waiting(self, tags: TagFilter, *, now: Instant) -> tuple[WaitingTask, ...]:
        """See `Transaction.waiting`."""
        self.expire(now=now)
        etas = [task.eta for task in self.ready(tags)]
        return sample_waiting(etas[:MAX_WAITING_READ], ready=len(etas), newest=etas[-1]) if etas else ()

    def upcoming(self, tags: TagFilter, *, until: Instant, limit: int, now: Instant) -> list[Instant]:
        """See `Transaction.upcoming`."""
        delayed = [task for task in self.tasks.values() if task.state is TaskState.DELAYED and now < task.eta <= until]
        delayed.sort(key=lambda task: (task.eta, task.id))
        return [task.eta for task in delayed[:limit] if not task.leases and tags.accepts(task.tag)]

    def live_leases(self, *, limit: int, now: Instant) -> list[LiveLease]:
        """See `Transaction.live_leases`."""
        leased = [task for task in self.tasks.values() if task.state is TaskState.LEASED and task.eta > now]
        leased.sort(key=lambda task: (task.eta, task.id))
        return [
            LiveLease(task.shown_name, task.tag, task.worker, task.leases, task.leased_at, task.eta, task.ready_at)
            for task in leased[:limit]
        ]

    def next_eta(self) -> Instant | None:
        """See `Transaction.next_eta`."""
        if self.spec.moved_to:
            return None
        return min((task.eta for task in self.tasks.values() if task.state in _CHANGED_BY_TIME), default=None)

    def held_names(self, *, after: str | None, limit: int, now: Instant) -> list[HeldName]:
        """See `Transaction.held_names`."""
        names = sorted(
            name for name, until in self.tombstones.items() if until > now and (after is None or name > after)
        )
        return [HeldName(name, self.tombstones[name]) for name in names[:limit]]
