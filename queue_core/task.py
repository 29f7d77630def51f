"""The queue's values: tasks, leases, tag filters and queue settings. Frozen; change them with `replace`. See ADR 3."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Final, Literal, TypeAlias

from queue_core.admission import NO_TAG_LIMITS, Rate, TagLimits
from queue_core.attempts.attempt import Attempt
from queue_core.clock import NEVER, Instant
from queue_core.errors import InvalidTokenError
from queue_core.fast_values import value
from queue_core.limits import MAX_ETA_SECONDS, MAX_LEASE_SECONDS, MAX_PAYLOAD_BYTES, NAME_RETENTION_SECONDS
from queue_core.rare_fields import copy_rare_fields, has_rare_fields

_TOKEN = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")


Headers: TypeAlias = Mapping[str, str]
"""Text by name that a task carries beside its payload; see `limits.check_headers`."""
CELERY_ID: Final = "celery-id"
"""The header that has the id which Celery gave a task; ended leases keep it. See ADR 118."""
CELERY_ID_FORM: Final = re.compile(r"[0-9A-Za-z_.:@-]{8,200}")
"""What an id of Celery's may look like: its own are UUIDs, but a caller may give another."""


class TaskState(IntEnum):
    """The state of a task. READY may be leased; DELAYED and LEASED become READY at their eta without a call.

    A HELD task's eta has come, but a limit of its tag holds it back (`admission`).
    The stored state may lag behind the clock: a DELAYED or LEASED task whose eta has passed *is* leasable, and every
    verb and statistic treats it so (`semantics.expire`).
    """

    READY = 0
    DELAYED = 1
    LEASED = 2
    DEAD = 3
    HELD = 4


ALL_STATES: Final = frozenset(TaskState)


@value
class NewTask:
    """A task to add. At most one of `eta` and `delay_seconds`; neither means now. `queue` None: the queue called.

    `max_leases`: the task's own limit; None: the queue's. `headers`: text by name, at most 4 KiB; None: none.
    `priority`: 0 to 9; a task of higher priority is leased before all of lower.
    """

    payload: bytes = b""
    name: str | None = None
    tag: str | None = None
    eta: Instant | None = None
    delay_seconds: float | None = None
    queue: str | None = None
    max_leases: int | None = None
    headers: Headers | None = None
    priority: int = 0


@value
class Progress:
    """How far the handler of a task says it is: a fraction in [0, 1] and a text of at most 200 characters."""

    fraction: float
    text: str = ""


@value
class StoredTask:
    """A task as the store keeps it.

    `eta` is the earliest instant of the next lease: a lease moves it to its own end. `leases` counts the leases
    charged so far. `leased_at` is the instant of the last grant (0: never leased); it never repeats for a task and
    is part of its token. `ready_at` is the eta before the present lease. `spent` holds future ends of leases that were
    cut short: no later lease may end at one of them.
    `max_leases`, `headers`, `priority`: see `NewTask`. `attempts`: its last leases that ended without its work being
    done, oldest first. `progress` and `checkpoint`: the last report of a handler with a renewal; None: nothing.
    """

    id: int
    queue: str
    payload: bytes
    eta: Instant
    added_at: Instant
    name: str | None = None
    tag: str | None = None
    state: TaskState = TaskState.READY
    leases: int = 0
    leased_at: Instant = NEVER
    ready_at: Instant = NEVER
    worker: str = ""
    reason: str = ""
    spent: tuple[Instant, ...] = ()
    max_leases: int | None = None
    headers: Headers | None = None
    attempts: tuple[Attempt, ...] = ()
    progress: Progress | None = None
    checkpoint: bytes | None = None
    priority: int = 0

    @property
    def token(self) -> str:
        """The token of the task's present or last lease."""
        return token_of(self.id, self.leased_at)

    @property
    def shown_name(self) -> str:
        """The given name, or else the generated one."""
        return self.name if self.name is not None else chosen_name(self.id)


@value
class Lease:
    """One worker's right to one task until `expires_at`. `lease_number` is 1 for the first charged lease.

    `headers`: those of the task; None: none. `checkpoint`: the last that a holder of an earlier lease left; None: none.
    """

    queue: str
    name: str
    tag: str | None
    payload: bytes
    token: str
    worker: str
    lease_number: int
    leased_at: Instant
    expires_at: Instant
    ready_at: Instant
    added_at: Instant
    headers: Headers | None = None
    checkpoint: bytes | None = None

    @property
    def waited_seconds(self) -> float:
        """Seconds from the task's eta to this lease."""
        return max(0.0, (self.leased_at - self.ready_at) / 1_000_000)


@dataclass(frozen=True, slots=True)
class TagFilter:
    """The tasks that a lease may take: any, those with one of some tags, the untagged, or a batch of one tag.

    `oldest` selects the tag of the oldest leasable task (among `tags` when given, else among all, where the untagged
    count as one tag); the whole batch has that tag.
    """

    kind: Literal["any", "tags", "untagged", "oldest"] = "any"
    tags: tuple[str, ...] = ()

    @classmethod
    def of(cls, *tags: str) -> "TagFilter":
        """Accept only tasks with one of these tags; give at least one."""
        if not tags:
            raise ValueError("TagFilter.of() needs a tag; use ANY for all tasks, UNTAGGED for those without")
        return cls("tags", tuple(dict.fromkeys(tags)))

    @classmethod
    def oldest(cls, *tags: str) -> "TagFilter":
        """Select a batch of one tag, that of the oldest leasable task."""
        return cls("oldest", tuple(dict.fromkeys(tags)))

    def accepts(self, tag: str | None) -> bool:
        """Return whether a task of this tag may be leased."""
        if self.kind == "untagged":
            return tag is None
        return not self.tags or tag in self.tags


ANY = TagFilter()
UNTAGGED = TagFilter("untagged")


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """The settings of a queue.

    Args:
        lease_seconds: length of a lease when the caller gives none.
        max_lease_seconds: total length that renewals may give a lease; at 7 days only each renewal is limited.
        max_leases: charged leases after which a task that is not deleted becomes dead; None: no limit.
        retry_min_seconds, retry_max_seconds: delay after the first failed lease, doubling up to the second.
        on_exhausted: keep a task at `max_leases` as dead, or delete it (App Engine).
        name_retention_seconds: how long a deleted task's given name still refuses a second add.
        lease_calls_per_second: limit on lease calls through the App Engine and Cloud Tasks APIs; None: no limit.
        user_emails: callers that may list, get, lease, delete and update tasks, through any API of a server.
        writer_emails: callers that may insert tasks. Both empty: any caller with a token.
        mode: `push` for a push queue of App Engine's queue.yaml: known by name, never leased from.
        moved_to: the store the queue was moved to; "" while it is in this one.
        history_keep: ended leases that `history` finds; 0: none.
        history_seconds: for how long it finds them.
        max_in_flight: leases of the queue that are held at a time; None: any number.
        rate: leases granted; None: any number.
        per_tag: the limits of each tag.
        max_payload_bytes: the largest payload, 1 to 64 MiB. Larger ones that were added before it was lowered stay.
        max_eta_seconds: how far ahead an eta may be, 30 days to 10 years; the delay of a release is at most 30 days.
        label: the name that people know it by, where its own is another; "": see `config.celery_names.shown_queue`.

    The store only keeps `lease_calls_per_second`, the emails and the mode; servers enforce them.
    """

    name: str
    lease_seconds: float = 60.0
    max_lease_seconds: float = MAX_LEASE_SECONDS
    max_leases: int | None = None
    retry_min_seconds: float = 1.0
    retry_max_seconds: float = 300.0
    on_exhausted: Literal["dead", "delete"] = "dead"
    name_retention_seconds: float = NAME_RETENTION_SECONDS
    lease_calls_per_second: int | None = None
    user_emails: tuple[str, ...] = ()
    writer_emails: tuple[str, ...] = ()
    mode: Literal["pull", "push"] = "pull"
    history_keep: int = 10_000
    history_seconds: float = 86_400.0
    max_in_flight: int | None = None
    rate: Rate | None = None
    per_tag: TagLimits = NO_TAG_LIMITS
    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    max_eta_seconds: float = MAX_ETA_SECONDS
    label: str = ""
    paused: bool = field(default=False, compare=False)
    moved_to: str = field(default="", compare=False)

    @property
    def is_closed(self) -> bool:
        """Return whether the queue grants no lease, as it is paused or was moved."""
        return self.paused or bool(self.moved_to)

    @property
    def is_limited(self) -> bool:
        """Return whether the whole queue has a limit."""
        return self.max_in_flight is not None or self.rate is not None


NEWER_SETTINGS: Final = {
    setting.name: setting.default
    for setting in fields(QueueSpec)
    if setting.name
    in (
        "history_keep",
        "history_seconds",
        "max_in_flight",
        "rate",
        "per_tag",
        "max_payload_bytes",
        "max_eta_seconds",
        "label",
    )
}
"""Settings that are left out of JSON where they are the default, so that older versions read it."""


def token_of(task_id: int, leased_at: Instant) -> str:
    """Return the token of the lease granted at `leased_at`."""
    return f"{task_id}.{leased_at}"


def parse_token(token: str) -> tuple[int, Instant]:
    """Return the task id and the instant of the grant. Raises `InvalidTokenError` for a text that is no token."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise InvalidTokenError(f"not a lease token: {token[:60]!r}; give the `token` of a lease unchanged")
    return int(match[1]), Instant(int(match[2]))


def chosen_name(task_id: int) -> str:
    """Return the generated name of a task that was added without one."""
    return f"_{task_id}"


def lease_of(task: StoredTask) -> Lease:
    """Return the lease of a LEASED task."""
    lease = Lease(
        task.queue,
        task.shown_name,
        task.tag,
        task.payload,
        task.token,
        task.worker,
        task.leases,
        task.leased_at,
        task.eta,
        task.ready_at,
        task.added_at,
        checkpoint=task.checkpoint,
    )
    return copy_rare_fields(task, lease) if has_rare_fields(task) else lease


SOLO_WORKER_MARK: Final = ".alone."
"""The part of a solo worker's name before the id and the eta of its task: `resize-7f3k2q.alone.16.1766370000123456`."""
_SOLO_WORKER: Final = re.compile(r".+\.alone\.([0-9]{1,18})\.([0-9]{1,18})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class QuarantinedTask:
    """The task that a solo worker was started for.

    A task is quarantined by releasing it with a delay; `held_until` is its eta. Both numbers are in the worker's
    name, so only that worker can lease the task before its eta.
    """

    task_id: int
    held_until: Instant


def quarantined_task_of(worker: str) -> QuarantinedTask | None:
    """Return the task of a solo worker; None for any other worker."""
    if SOLO_WORKER_MARK not in worker:
        return None
    match = _SOLO_WORKER.fullmatch(worker)
    return None if match is None else QuarantinedTask(int(match[1]), Instant(int(match[2])))


def celery_id_of(headers: Headers | None) -> str:
    """Return the id that Celery gave a task, from its headers; "" for none."""
    found = headers.get(CELERY_ID, "") if headers else ""
    return found if CELERY_ID_FORM.fullmatch(found) else ""
