"""A task's story: what the store knows of it, live, dead or finished, as lines for people and as events."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from queue_core.attempts.attempt import Attempt
from queue_core.cli.output import payload_fields, shown_instant
from queue_core.client.queue import Queues
from queue_core.clock import Instant, seconds_between
from queue_core.errors import PermissionDeniedError, UnknownQueueError
from queue_core.process.wording import counted, shown_ago, shown_ahead, shown_seconds
from queue_core.rare_fields import rare_json, shown_rare_fields
from queue_core.stats import FinishedLease
from queue_core.task import CELERY_ID_FORM, StoredTask, TaskState
from queue_core.verbs.wire import flat_json

MAX_LEASES_READ: Final = 100
"""Ended leases of one task that its story has at most."""
_ENDINGS: Final = {"deleted": "done", "released": "given back", "expired": "expired", "removed": "deleted"}
StateWord: TypeAlias = Literal["ready", "delayed", "in-flight", "dead", "held"]
SHOWN_STATES: Final[Mapping[TaskState, StateWord]] = {
    TaskState.READY: "ready",
    TaskState.DELAYED: "delayed",
    TaskState.LEASED: "in-flight",
    TaskState.DEAD: "dead",
    TaskState.HELD: "held",
}
WAITING: Final = frozenset({TaskState.READY, TaskState.DELAYED, TaskState.HELD})
"""States of a task that somebody is still to lease."""
LONGER_SECONDS: Final = 0.5
"""A task that could not be leased for so long before it waited for a worker has both times shown."""
NOTHING_MORE: Final[Mapping[str, str]] = {}
_EVENTS: Final = {"done": "task.deleted", "deleted": "task.deleted", "expired": "lease.expired"}
"""The events that tell of ended leases, by their `outcome`; of others, `lease.released`."""
_STEPS: Final = {"task.added": 0, "task.leased": 1}


@dataclass(frozen=True, slots=True)
class LeaseStory:
    """One ended lease: from the task's attempts, from the queue's history, or from both."""

    lease_number: int
    worker: str
    began_at: Instant
    ended_at: Instant
    outcome: str
    error: str = ""
    host: str = ""

    @property
    def held_seconds(self) -> float:
        """Seconds from its begin to its end."""
        return max(0.0, seconds_between(self.began_at, self.ended_at))


@dataclass(frozen=True, slots=True)
class TaskStory:
    """A task and its ended leases, oldest first. `task` None: it is no longer in its queue."""

    queue: str
    name: str
    task: StoredTask | None
    leases: tuple[LeaseStory, ...]
    finished: tuple[FinishedLease, ...]

    @property
    def state(self) -> StateWord | Literal["done", "deleted", "died and was deleted"]:
        """The state in a word; `done` for a task whose holder deleted it, `deleted` where somebody else did."""
        if self.task is None:
            return _gone(self.finished[0])
        return SHOWN_STATES[self.task.state]

    @property
    def added_at(self) -> Instant:
        """When the task was added; 0 when nobody knows."""
        return self.task.added_at if self.task is not None else self.finished[-1].added_at

    @property
    def tag(self) -> str | None:
        """The task's tag."""
        return self.task.tag if self.task is not None else self.finished[0].tag


MAX_SEARCHES: Final = 10
"""Calls of a search for a Celery id in one queue: of 10,000 tasks each."""


def find_stories(queues: Queues, reference: str, *, only_queue: str | None = None) -> list[TaskStory]:
    """Return the tasks that a name means, of all queues or of one; `QUEUE/NAME` names the queue too.

    A finished task is found as long as its queue's history goes back. A Celery task is found by Celery's id, too.
    """
    queue, slash, name = reference.rpartition("/")
    names = [queue] if slash else [only_queue] if only_queue else [spec.name for spec in queues.queues()]
    found = [_story(queues, each, name) for each in names]
    stories = [story for story in found if story is not None]
    return stories or [
        story
        for each in names
        for one in _named_by_celery(queues, each, name)
        if (story := _story(queues, each, one)) is not None
    ]


def _named_by_celery(queues: Queues, queue: str, celery_id: str) -> list[str]:
    """Return the names of the tasks of a queue whose messages have this id of Celery's."""
    from queue_core.verbs.criteria import Search  # most tasks are found by their names

    if not CELERY_ID_FORM.fullmatch(celery_id):
        return []
    search, after = Search(contains=f'"id":"{celery_id}"'), 0
    try:
        ended = queues.queue(queue).history(names=[celery_id], limit=MAX_LEASES_READ).leases
        names = [lease.name for lease in reversed(ended)]
    except UnknownQueueError:
        return []
    try:
        for _ in range(MAX_SEARCHES):
            page = queues.queue(queue).search(search, after=after)
            names += [task.shown_name for task in page.tasks]
            if page.next_after is None:
                break
            after = page.next_after
    except (PermissionDeniedError, UnknownQueueError):  # who may not read payloads may not search them
        pass
    return list(dict.fromkeys(names))


def _story(queues: Queues, queue: str, name: str) -> TaskStory | None:
    opened = queues.queue(queue)
    try:
        page = opened.peek(names=[name], limit=1)
        found = opened.history(names=[name], limit=MAX_LEASES_READ).leases
    except UnknownQueueError:
        return None
    finished = tuple(lease for lease in found if lease.name == name)  # or the name is an id of Celery's
    task = next(iter(page.tasks), None)
    if task is not None:  # a name may be used again: what ended before the task was added is another's
        finished = tuple(lease for lease in finished if lease.ended_at >= task.added_at)
        if any(lease.outcome in ("deleted", "removed") for lease in finished):
            task = None  # it was done, or deleted, between the two reads
    if task is None and not finished:
        return None
    return TaskStory(queue, name, task, tuple(_leases(task.attempts if task else (), finished)), finished)


def _leases(attempts: Sequence[Attempt], finished: Sequence[FinishedLease]) -> list[LeaseStory]:
    """Return each ended lease once; an attempt says more than the history does."""
    found: dict[tuple[str, Instant], LeaseStory] = {}
    for lease in finished:
        found[lease.worker, lease.ended_at] = LeaseStory(
            lease.lease_number,
            lease.worker,
            lease.leased_at,
            lease.ended_at,
            _ending(lease),
            lease.reason,
        )
    for one in attempts:
        said = one.text if one.error or one.message else ""
        found[one.worker, one.ended_at] = LeaseStory(
            one.lease_number, one.worker, one.began_at, one.ended_at, one.outcome.replace("_", " "), said, one.host
        )
    return sorted(found.values(), key=lambda lease: (lease.began_at, lease.ended_at))


def _ending(lease: FinishedLease) -> str:
    """Return how a lease ended: a history has the reason of a release, but not whether it was an error or a death."""
    if lease.outcome == "released" and lease.reason:
        return "released"
    return "died" if lease.died and not lease.reason else _ENDINGS[lease.outcome]


def story_lines(
    story: TaskStory, *, now: Instant, ends: Mapping[str, str] = NOTHING_MORE, unserved: str = ""
) -> Iterator[str]:
    """Yield a task's story for people, line by line.

    `ends` says of workers why the leases that they held expired, `unserved` that no pool works on the task's tag.
    """
    tag = f", tag {story.tag}" if story.tag is not None else ""
    yield f"{story.queue}/{story.name}{tag}: {_state_sentence(story, now)}"
    if unserved:
        yield f"  ! {unserved}"
    if story.task is not None and story.task.state is TaskState.DEAD:
        yield f"  reason: {' '.join(story.task.reason.split())}"
    if story.added_at:
        yield f"  added {shown_instant(story.added_at, now=now)}, {_ago(story.added_at, now)}"
    if story.task is not None and story.task.progress is not None:
        progress = story.task.progress
        said = f": {progress.text}" if progress.text else ""
        yield f"  progress: {progress.fraction:.0%}{said}"
    if story.task is not None and story.task.checkpoint is not None:
        yield f"  checkpoint: {len(story.task.checkpoint):,} bytes, for its next lease"
    if story.task is not None:
        yield from (f"  {name}: {text}" for name, text in shown_rare_fields(story.task).items())
    if story.leases:
        yield "  leases that ended, oldest first:"
    for number, lease in zip(lease_ordinals(story.leases), story.leases, strict=True):
        worker = f"{lease.worker or '-'}{f' on {lease.host}' if lease.host else ''}"
        line = f"    {number}. {shown_instant(lease.began_at, now=now)}  {worker}"
        yield f"{line}  {lease.outcome} after {shown_seconds(lease.held_seconds)}"
        said = lease.error or (ends.get(lease.worker, "") if lease.outcome == "expired" else "")
        if said:
            yield f"       {' '.join(said.split())}"
    if story.task is not None and story.task.attempts and story.task.attempts[-1].traceback:
        yield "  traceback of the last attempt:"
        yield from (f"    {line}" for line in story.task.attempts[-1].traceback.splitlines())
    if story.task is not None and story.task.state is TaskState.DEAD:
        yield f"  next: fix the error above, then run `towline redrive {story.queue} --named {story.name}`"


def _state_sentence(story: TaskStory, now: Instant) -> str:
    task = story.task
    if task is None:
        last = story.finished[0]
        ended = _gone(last)
        worker = last.worker or "an unnamed worker"
        took = shown_seconds(last.held_seconds)
        if ended == "deleted":
            who = last.reason or "deleted"
            return f"{who} {_ago(last.ended_at, now)}, while it was running on {worker} for {took}; {_waited(last)}"
        return f"{ended} {_ago(last.ended_at, now)} by {worker}; {_waited(last)} and took {took}"
    after = f", after {counted(task.leases, 'lease')}" if task.leases else ""
    if task.state is TaskState.LEASED:
        lasts = shown_seconds(max(0.0, seconds_between(task.leased_at, now)))
        left = shown_seconds(max(0.0, seconds_between(now, task.eta)))
        return f"in flight for {lasts}, lease {task.leases}, held by {task.worker or 'an unnamed worker'}, {left} left"
    if task.state is TaskState.DEAD:
        return f"dead for {shown_seconds(max(0.0, seconds_between(task.eta, now)))}{after}"
    if task.state is TaskState.DELAYED:
        return f"waits for its time, {shown_ahead(seconds_between(now, task.eta))}{after}"
    if task.state is TaskState.HELD:
        since = shown_seconds(max(0.0, seconds_between(task.eta, now)))
        return f"held for {since} by the limits of its tag (`queues.{task.queue}.per_tag`){after}"
    waits = shown_seconds(max(0.0, seconds_between(task.ready_at, now)))
    return f"ready, waits for a worker for {waits} so far{after}"


def _gone(last: FinishedLease) -> Literal["done", "deleted", "died and was deleted"]:
    """Return what became of a task that has left its queue, by its last lease."""
    if last.died:
        return "died and was deleted"
    return "deleted" if last.outcome == "removed" else "done"


def _waited(lease: FinishedLease) -> str:
    """Return how long a task waited: for a worker, and since it was added where a delay or a limit came before."""
    waited = shown_seconds(lease.waited_seconds)
    since_added = seconds_between(lease.added_at, lease.leased_at) if lease.added_at else 0.0
    if lease.lease_number > 1 or since_added - lease.waited_seconds < LONGER_SECONDS:
        return f"it waited {waited}"
    return f"it started {shown_seconds(since_added)} after it was added, waited {waited} for a worker"


def lease_ordinals(leases: Sequence[LeaseStory]) -> list[int]:
    """Return a number for each lease, oldest first, that counts on where a redrive began to count its leases anew."""
    numbers: list[int] = []
    for lease in leases:
        numbers.append(max(lease.lease_number, numbers[-1] + 1) if numbers else lease.lease_number)
    return numbers


def _ago(at: Instant, now: Instant) -> str:
    return shown_ago(seconds_between(at, now))


# -- for programs -----------------------------------------------------------------------------------------------------


def story_record(story: TaskStory) -> dict[str, object]:
    """Return a task's story as JSON, without its payload."""
    return {
        "queue": story.queue,
        "name": story.name,
        "tag": story.tag,
        "state": story.state,
        "added_at": story.added_at or None,
        "reason": story.task.reason if story.task is not None else story.finished[0].reason,
        "task": None if story.task is None else _record_without_payload(story.task),
        "leases": [{**flat_json(lease), "held_seconds": lease.held_seconds} for lease in story.leases],
    }


def task_record(task: StoredTask) -> dict[str, object]:
    """Return a task as JSON, with as much of its payload as was read."""
    return {**_record_without_payload(task), **payload_fields(task.payload)}


def _record_without_payload(task: StoredTask) -> dict[str, object]:
    return {
        "id": task.id,
        "name": task.shown_name,
        "queue": task.queue,
        "tag": task.tag,
        "state": SHOWN_STATES[task.state],
        "eta": task.eta,
        "added_at": task.added_at,
        "leases": task.leases,
        "worker": task.worker,
        "reason": task.reason,
        "headers": {},
        **rare_json(task),
        "attempts": [flat_json(attempt) for attempt in task.attempts],
        "progress": None if task.progress is None else flat_json(task.progress),
        "checkpoint_bytes": None if task.checkpoint is None else len(task.checkpoint),
    }


def story_events(story: TaskStory) -> list[dict[str, object]]:
    """Return what the store knows of a task as lifecycle events, oldest first, in the form of a server's."""
    task = story.task
    head = {"queue": story.queue, "task": story.name, "tag": story.tag}
    events: list[dict[str, object]] = []
    if story.added_at:
        events.append({"event": "task.added", "at": story.added_at, **head})
    for lease in story.leases:
        of_lease = {**head, "worker": lease.worker, "lease_number": lease.lease_number}
        events.append({"event": "task.leased", "at": lease.began_at, **of_lease})
        name = {"done": "task.deleted", "deleted": "task.deleted", "expired": "lease.expired"}.get(
            lease.outcome, "lease.released"
        )
        ended: dict[str, object] = {"event": name, "at": lease.ended_at, **of_lease, "held_seconds": lease.held_seconds}
        events.append(ended | ({"reason": lease.error} if lease.error else {}))
    if task is not None and task.state is TaskState.LEASED:
        of_lease = {**head, "worker": task.worker, "lease_number": task.leases}
        events.append({"event": "task.leased", "at": task.leased_at, **of_lease})
    if task is not None and task.state is TaskState.DEAD:
        of_lease = {**head}
        if story.leases:
            of_lease |= {"worker": story.leases[-1].worker, "lease_number": story.leases[-1].lease_number}
        events.append({"event": "task.died", "at": task.eta, **of_lease, "reason": task.reason})
    events.sort(key=lambda event: (_event_time(event), _STEPS.get(str(event["event"]), 2)))
    return events


def merged_events(
    remembered: Sequence[dict[str, object]], of_stores: Sequence[dict[str, object]]
) -> list[dict[str, object]]:
    """Return the events of a server's memory, and those that only the store knows, oldest first."""
    known = {(event["queue"], event["event"], event.get("lease_number")) for event in remembered}
    more = [event for event in of_stores if (event["queue"], event["event"], event.get("lease_number")) not in known]
    return sorted([*more, *remembered], key=_event_time)


def _event_time(event: Mapping[str, object]) -> int:
    at = event["at"]
    return at if isinstance(at, int) else 0
