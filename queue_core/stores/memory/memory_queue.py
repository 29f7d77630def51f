"""One queue of the reference store: its tasks, names, totals and finished leases."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from queue_core import semantics
from queue_core.admission import has_room_for_one, lane_change, lane_opens_at, queue_room
from queue_core.clock import NEVER, Instant, after
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
from queue_core.task import ANY, UNTAGGED, NewTask, QueueSpec, StoredTask, TagFilter, TaskState, parse_token
from queue_core.verbs import Added, HeldName, Page
from queue_core.verbs.change_verbs import READY_OR_HELD, HeldTasks, LeasedBy, Named, Outcome, Removed, Selector

KEPT_SAMPLES = 10_000
"""Finished leases kept of each queue, at least; more where its history is longer."""
MAX_WAITING_READ = 1000
"""Etas of ready tasks that `waiting` reads at most."""

_CHANGED_BY_TIME = (TaskState.DELAYED, TaskState.LEASED)
_BY_ETA = attrgetter("eta", "id")


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
    full_at: dict[str | None, Instant] = field(default_factory=dict)
    """When the bucket of each tag, and of the whole queue (None), is full again."""
    rotation: dict[str | None, int] = field(default_factory=dict)
    """The place in the rotation of each tag that has READY tasks, in a fair queue: the lowest is next."""
    last_place: int = 0
    admitted: list[tuple[str | None, int]] = field(default_factory=list)
    """Tags of tasks that became leasable by limits alone, and how many, since `Transaction.admitted` was called."""
    _touched: set[str | None] = field(default_factory=set)
    _ended: int = 0
    _limits_changed: bool = False

    def put(self, task: StoredTask) -> None:
        """Store the task as it is now. A task of a lane that becomes READY is held until `update_lanes` admits it."""
        before = self.tasks.get(task.id)
        enters = task.state is TaskState.READY and (before is None or before.state is not TaskState.READY)
        self.tasks[task.id] = semantics.hold(task) if enters and self._has_lane(task.tag) else task
        self._touched.add(task.tag)

    def _has_lane(self, tag: str | None) -> bool:
        return tag is not None and self.spec.per_tag.holds_tasks

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
        return Added(task.shown_name, "added", task.state is TaskState.READY and not self._has_lane(task.tag))

    def hold_name(self, held: HeldName, *, now: Instant) -> None:
        """Refuse adds under a name that no task has until `held.until`, or longer if it is tombstoned already."""
        if held.name not in self.names and held.until > now:
            self.tombstones[held.name] = max(held.until, self.tombstones.get(held.name, now))

    def drop(self, task: StoredTask, *, at: Instant) -> None:
        """Delete the task; a given name stays taken for its retention."""
        del self.tasks[task.id]
        self._touched.add(task.tag)
        if task.name is not None:
            del self.names[task.name]
            self.tombstones[task.name] = after(at, self.spec.name_retention_seconds)

    def end(self, task: StoredTask, ending: LeaseEnd) -> FinishedLease:
        """Apply the end of a lease, and record it."""
        if ending.task is None:
            self.drop(task, at=ending.finished.ended_at)
        else:
            self.put(ending.task)
        self._ended += 1
        if ending.finished.outcome != "removed":
            self.count(task.tag, ending.finished.outcome)
        if ending.finished.died:
            self.count(task.tag, "died")
        self.samples.append(ending.finished)
        overflow = len(self.samples) - max(KEPT_SAMPLES, self.spec.history_keep)
        if overflow > 0:
            del self.samples[:overflow]
            self.samples_dropped += overflow
        return ending.finished

    def hold(self, selector: Selector, *, now: Instant) -> HeldTasks[StoredTask]:
        """See `ChangeVerbs.hold`."""
        if not isinstance(selector, Named) or selector.settles:
            self.expire(now=now)
        if isinstance(selector, Named):
            named = {name: task for name in selector.names if (task := self.named(name)) is not None}
            return HeldTasks(self.spec, list(named.values()), _as_it_is, list(named))
        if isinstance(selector, LeasedBy):
            leased = self.leased_by(selector.worker)[: selector.limit]
            return HeldTasks(self.spec, leased, _as_it_is, rest=selector.rest(len(leased)))
        found: list[StoredTask] = []
        for state in selector.states:
            of_state = [task for task in self.tasks.values() if task.state is state and selector.tags.accepts(task.tag)]
            found += sorted(of_state, key=_BY_ETA)
        return HeldTasks(self.spec, found[: selector.limit], _as_it_is)

    def change(self, before: StoredTask, outcome: Outcome, *, now: Instant) -> None:
        """Store what became of a task."""
        if isinstance(outcome, LeaseEnd):
            self.end(before, outcome)
        elif isinstance(outcome, Removed):
            self.drop(before, at=now)
            if outcome is Removed.DELETED:
                self.count(before.tag, "deleted")
        else:
            is_ready = outcome.state in READY_OR_HELD
            after = replace(outcome, state=TaskState.READY) if is_ready else outcome
            self.tasks[before.id] = semantics.hold(after) if is_ready and self._has_lane(after.tag) else after
            self._touched |= {before.tag, after.tag}
            self.totals.setdefault(after.tag, {})

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
        held = {task.tag for task in self.tasks.values() if task.state is TaskState.HELD}
        self._touched |= held
        self._ended = len(self.tasks)  # time alone may have made room in the whole queue
        self.update_lanes(now=now)
        return ended

    # -- limits ---------------------------------------------------------------------------------------------------

    def update_lanes(self, *, now: Instant) -> None:
        """Let lanes of changed tags admit what they have room for, and put tags into the rotation; ends each verb."""
        touched = self._touched
        self._touched = set()
        for tag in touched:
            if tag is not None:
                self._update_lane(tag, now=now)
        if self.spec.per_tag.fair:
            self._update_rotation(touched)
        if self.spec.is_limited and self._ended:
            for task in self.ready(ANY)[: min(self._ended, self.room(now=now))]:
                self.admitted.append((task.tag, 1))
        self._ended = 0
        self._limits_changed = False

    def replace_settings(self, spec: QueueSpec, *, now: Instant) -> None:
        """Replace the settings; other limits of tags hold back or admit tasks at once."""
        self._limits_changed = spec.per_tag != self.spec.per_tag
        self.spec = replace(spec, paused=self.spec.paused, moved_to=self.spec.moved_to)
        states = frozenset(TaskState) if self._limits_changed else {TaskState.HELD}
        self._touched |= {task.tag for task in self.tasks.values() if task.state in states}
        if not self.spec.per_tag.fair:
            self.rotation.clear()
        self.update_lanes(now=now)

    def _with_tag(self, tag: str, state: TaskState) -> list[StoredTask]:
        found = [task for task in self.tasks.values() if task.tag == tag and task.state is state]
        return sorted(found, key=semantics.lease_order)

    def _update_lane(self, tag: str, *, now: Instant) -> None:
        ready, held = self._with_tag(tag, TaskState.READY), self._with_tag(tag, TaskState.HELD)
        change = lane_change(
            self.spec.per_tag,
            ready=len(ready),
            leased=len(self._with_tag(tag, TaskState.LEASED)),
            held=len(held),
            full_at=self.full_at.get(tag, NEVER),
            now=now,
            limits_changed=self._limits_changed,
        )
        for _ in range(change.holds):
            worst = ready.pop()
            self.tasks[worst.id] = semantics.hold(worst)
            held = sorted([*held, worst], key=semantics.lease_order)
        admitted = held[: change.admits]
        for task in held[len(admitted) :]:
            if not ready or ready[-1].priority >= task.priority:
                break
            worst = ready.pop()
            self.tasks[worst.id] = semantics.hold(worst)
            admitted.append(task)
        for task in admitted:
            self.tasks[task.id] = semantics.admit(task, now=now)
        if admitted:
            self.admitted.append((tag, len(admitted)))

    def _update_rotation(self, touched: set[str | None]) -> None:
        heads: dict[str | None, StoredTask] = {}
        for task in self.ready(ANY):
            heads.setdefault(task.tag, task)
        for tag in touched:
            if tag not in heads:
                self.rotation.pop(tag, None)
        new = [task for tag, task in heads.items() if tag in touched and tag not in self.rotation]
        for task in sorted(new, key=semantics.lease_order):
            self._to_end_of_rotation(task.tag)

    def _to_end_of_rotation(self, tag: str | None) -> None:
        self.last_place += 1
        self.rotation[tag] = self.last_place

    def room(self, *, now: Instant) -> int:
        """Return how many leases the limits of the whole queue let it grant."""
        leased = sum(task.state is TaskState.LEASED for task in self.tasks.values())
        full_at = self.full_at.get(None, NEVER)
        return queue_room(self.spec.max_in_flight, self.spec.rate, leased=leased, full_at=full_at, now=now)

    def has_room_for(self, task: StoredTask, *, now: Instant) -> bool:
        """Return whether limits let this one task be leased, whichever others are admitted."""
        if self.room(now=now) < 1:
            return False
        if task.tag is None or not self.spec.per_tag.holds_tasks:
            return True
        return has_room_for_one(
            self.spec.per_tag,
            ready=len(self._with_tag(task.tag, TaskState.READY)),
            leased=len(self._with_tag(task.tag, TaskState.LEASED)),
            full_at=self.full_at.get(task.tag, NEVER),
            now=now,
        )

    def take(self, task: StoredTask, leased: StoredTask, *, now: Instant) -> None:
        """Store a task that was leased, and take its tokens, and move its tag to the end of the rotation."""
        self.put(leased)
        self.count(task.tag, "leased")
        if self.spec.rate is not None:
            self.full_at[None] = self.spec.rate.full_again_at(self.full_at.get(None, NEVER), taken=1, now=now)
        rate = self.spec.per_tag.rate
        if rate is not None and task.tag is not None:
            self.full_at[task.tag] = rate.full_again_at(self.full_at.get(task.tag, NEVER), taken=1, now=now)
        if self.spec.per_tag.fair and task.tag in self.rotation:
            self._to_end_of_rotation(task.tag)

    def choose(self, tags: TagFilter, count: int, *, now: Instant) -> list[StoredTask]:
        """Return the READY tasks that one lease takes: as many as limits of the whole queue allow, `count` at most."""
        count = min(count, self.room(now=now))
        ready = self.ready(tags)
        if not self.spec.per_tag.fair or not ready:
            return ready[:count]
        places, last = dict(self.rotation), self.last_place
        waiting: dict[str | None, list[StoredTask]] = {}
        for task in ready:
            waiting.setdefault(task.tag, []).append(task)
        chosen: list[StoredTask] = []
        while waiting and len(chosen) < count:
            tag = min(waiting, key=lambda each: (-waiting[each][0].priority, places[each]))
            if tags.kind == "oldest":
                return waiting[tag][:count]
            chosen.append(waiting[tag].pop(0))
            last += 1
            places[tag] = last
            if not waiting[tag]:
                del waiting[tag]
        return chosen

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
        ready.sort(key=semantics.lease_order)
        if tags.kind == "oldest" and ready and not self.spec.per_tag.fair:
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
            held=states.count(TaskState.HELD),
            room=self.room(now=now) if self.spec.is_limited else None,
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
            if names is not None and lease.name not in names and (not lease.celery_id or lease.celery_id not in names):
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
        etas = sorted(task.eta for task in self.ready(tags))
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

    def next_eta(self, *, now: Instant) -> Instant | None:
        """See `Transaction.next_eta`."""
        if self.spec.moved_to:
            return None
        etas = [task.eta for task in self.tasks.values() if task.state in _CHANGED_BY_TIME]
        for tag in {task.tag for task in self.tasks.values() if task.state is TaskState.HELD}:
            assert tag is not None, "untagged tasks have no lane"
            number = {state: len(self._with_tag(tag, state)) for state in TaskState}
            opens_at = lane_opens_at(
                self.spec.per_tag,
                ready=number[TaskState.READY],
                leased=number[TaskState.LEASED],
                held=number[TaskState.HELD],
                full_at=self.full_at.get(tag, NEVER),
            )
            etas += [] if opens_at is None else [opens_at]
        full_at = self.full_at.get(None, NEVER)
        if self.spec.rate is not None and not self.spec.rate.tokens(full_at, now=now) and self.ready(ANY):
            etas.append(self.spec.rate.reached_at(1, full_at))
        return min(etas, default=None)

    def held_names(self, *, after: str | None, limit: int, now: Instant) -> list[HeldName]:
        """See `Transaction.held_names`."""
        names = sorted(
            name for name, until in self.tombstones.items() if until > now and (after is None or name > after)
        )
        return [HeldName(name, self.tombstones[name]) for name in names[:limit]]


def _as_it_is(task: StoredTask) -> StoredTask:
    return task
