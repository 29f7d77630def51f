"""Requests and outcomes: the values that the verbs of a store take and return. Frozen.

A `None` in place of an outcome: that token is not current and changed nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import attrgetter
from typing import Final, Literal, Self, TypeAlias

from queue_core import semantics
from queue_core.attempts.attempt import GIVEN_BACK, Failure
from queue_core.clock import Instant
from queue_core.errors import KeyReusedError, OutcomeUnknownError
from queue_core.fast_values import value
from queue_core.stats import FinishedLease, LiveLease, QueueStats, Samples, WaitingTask, WorkerActivity
from queue_core.task import ANY, Lease, NewTask, Progress, StoredTask, TagFilter, TaskState

_THEN = attrgetter("then")

Busy: TypeAlias = Literal["keep", "finish"]
"""How to retire a worker that holds a lease: see `Transaction.retire_worker`."""


NameOutcome: TypeAlias = Literal["deleted", "unknown", "tombstoned"]
"""The outcome of a deletion by name. `tombstoned`: the task was deleted before, and its name is still taken."""


@value
class Added:
    """The outcome of one add. `exists`, `tombstoned`: the name is taken, and nothing was changed."""

    name: str
    status: Literal["added", "exists", "tombstoned"]
    ready: bool = False


@dataclass(frozen=True, slots=True)
class PayloadAllowance:
    """The bytes that the leased tasks of one reply may take; a task that does not fit is not leased.

    Args:
        total_bytes: the limit for all tasks together.
        each_bytes: overhead per task, besides its payload, its tag and its given name.
        least: number of tasks leased whatever their size, so that no task is too large to be leased.
    """

    total_bytes: int
    each_bytes: int = 0
    least: int = 1

    def fitting(self, sizes: Sequence[int]) -> int:
        """Return how many tasks of these sizes fit, counted from the first: see `semantics.fitting`."""
        return semantics.fitting(sizes, total_bytes=self.total_bytes, each_bytes=self.each_bytes, least=self.least)


@value
class LeaseRequest:
    """A request for up to `count` tasks of `tags`, leased to `worker` ("": no named worker).

    `seconds` None: the queue's `lease_seconds`. `allowance` None: tasks of any total size.
    """

    count: int
    seconds: float | None
    tags: TagFilter
    worker: str
    allowance: PayloadAllowance | None = None


@value
class Granted:
    """The result of a lease: leases granted, and leases that the call found expired.

    `more_due`: the call expired its bounded number of tasks and more are due; when `leases` is empty, call again at
    once. `refused`: the worker was retired, so an exchange granted it nothing. `added`: the outcomes of the `then` of
    an exchange's deletions.
    """

    leases: Sequence[Lease]
    expired: tuple[FinishedLease, ...] = ()
    more_due: bool = False
    refused: bool = False
    added: tuple[Added, ...] = ()


class ExchangeResult(tuple[list[Lease], tuple[str, ...]]):  # noqa: SLOT001 - a tuple takes none
    """The result of an exchange, to be unpacked: the leases, and the tokens that were not current.

    `added`: one outcome per task of the `then` of those deletions that took effect, in order.
    """

    added: tuple[Added, ...]

    def __new__(cls, leases: list[Lease], lost: Sequence[str], added: Sequence[Added] = ()) -> Self:
        """Make one of its parts."""
        made = super().__new__(cls, (leases, tuple(lost)))
        made.added = tuple(added)
        return made

    def __getnewargs__(self) -> tuple[list[Lease], tuple[str, ...], tuple[Added, ...]]:
        """Return what copies and pickles are made of."""
        return self[0], self[1], self.added


@dataclass(frozen=True, slots=True)
class Renewal:
    """A request that a lease end `seconds` from now; None: the queue's `lease_seconds`.

    `progress`, `checkpoint`: the report of its handler; None: no news.
    """

    token: str
    seconds: float | None = None
    progress: Progress | None = None
    checkpoint: bytes | None = None


@dataclass(frozen=True, slots=True)
class Renewed:
    """A lease and its new end."""

    token: str
    name: str
    tag: str | None
    worker: str
    lease_number: int
    expires_at: Instant


@dataclass(frozen=True, slots=True)
class Release:
    """A request to give a lease back. `delay_seconds` None: the queue's back-off, reduced by `jitter` in [0, 1).

    `failure`: why; it is kept among the task's attempts.
    """

    token: str
    delay_seconds: float | None = None
    charge: Literal["counted", "uncounted"] = "counted"
    dead_reason: str = ""
    jitter: float = 0.0
    failure: Failure = GIVEN_BACK

    @property
    def reason(self) -> str:
        """The reason of the task if it dies by this release."""
        return self.dead_reason or self.failure.text


@value
class Deletion:
    """A request to end a lease by deleting its task and, atomically, add the tasks of `then`.

    A task of `then` without a `queue` goes to the same queue.
    """

    token: str
    then: tuple[NewTask, ...] = ()


def handed_over(deletions: Sequence[Deletion]) -> list[tuple[NewTask, ...]]:
    """Return the `then` of each deletion that has one; few do."""
    return list(filter(None, map(_THEN, deletions)))


@value
class Deleted:
    """A deletion that took effect, with the outcomes of its `then`."""

    finished: FinishedLease
    then: tuple[Added, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldName:
    """The given name of a deleted task; it refuses a second add until `until`."""

    name: str
    until: Instant


CallVerb: TypeAlias = Literal["add", "lease", "exchange", "delete", "other"]
"""The verbs of a client's call that a store may deduplicate itself; `other`: with a `then`, or for a solo worker."""


@dataclass(frozen=True, slots=True)
class ClientCall:
    """One call of a client's session: a session makes one call at a time and numbers them upwards.

    `is_repeat`: the call may have been sent before, so look for its recorded answer. `age_seconds`: the longest time
    since it was first sent. `meaning`: the fingerprint of who asks for what, as `meaning_of` makes it, which is kept
    with the answer; "": it is not known, and the call is told by its number alone.
    """

    session: str
    number: int
    is_repeat: bool = False
    age_seconds: int = 60
    meaning: str = ""

    def kept(self, answer: bytes) -> bytes:
        """Return an answer (JSON) as it is kept: behind the fingerprint of the call."""
        return self.meaning.encode() + answer if self.meaning else answer

    def answer_of(self, kept: bytes) -> bytes:
        """Return the answer in what was kept. Raises `KeyReusedError` when it is that of a call with another meaning.

        Answers that were kept without a fingerprint have none to compare.
        """
        if not kept.startswith(MEANING_SIGN):
            return kept
        self.check_meaning(kept[:MEANING_BYTES].decode())
        return kept[MEANING_BYTES:]

    def check_meaning(self, kept: str) -> None:
        """Raise `KeyReusedError` when the call that has this number means something else; "": that is not known."""
        if kept and self.meaning and kept != self.meaning:
            raise key_reused(self)

    def answer_in(self, last: tuple[int, bytes] | None) -> bytes | None:
        """Return this call's answer if `last`, the number and answer of the session's last call, is this call.

        Raises `OutcomeUnknownError` when `last` is a later call, `KeyReusedError` when its number is another call's.
        """
        if last is None or last[0] < self.number:
            return None
        if last[0] > self.number:
            raise OutcomeUnknownError(
                f"call {self.number} of its session comes after call {last[0]} was answered: whether it took effect is "
                "not known; check before repeating"
            )
        return self.answer_of(last[1])


MEANING_SIGN: Final = b"#"
"""The first byte of a fingerprint, with which no JSON begins."""
MEANING_BYTES: Final = 17
"""The sign, and 16 hexadecimal digits."""


def meaning_of(about: str, body: bytes | bytearray, *, by: bytes = b"") -> str:
    """Return the fingerprint of a call, by which its key is known to be its own (ADR 126).

    Args:
        about: what is called: verb and queue, or endpoint, path and query.
        body: what it is called with.
        by: the caller's mark, at most 64 bytes: the same call by another caller is another call.
    """
    digest = blake2b(f"{about}\n".encode(), digest_size=8, key=by)
    digest.update(body)
    return f"#{digest.hexdigest()}"


def key_reused(call: ClientCall) -> KeyReusedError:
    """Return the error for a call whose number is that of another call of its session."""
    session, _, _ = call.session.partition(".")  # behind it is what the server does for the call
    return KeyReusedError(
        f"Idempotency-Key {session}/{call.number} belongs to another call: its path, body or token was another, and "
        "nothing was changed by this one; give each call of a session a number of its own, and repeat a call with the "
        "number, path, body and token of its first try"
    )


def too_old(call: ClientCall) -> OutcomeUnknownError:
    """Return the error for a repeat whose answer may be forgotten."""
    return OutcomeUnknownError(
        f"this call was first sent {call.age_seconds} s ago, too long ago or with very many others since: it is no "
        "longer known whether it took effect; check before repeating it"
    )


@dataclass(frozen=True, slots=True)
class PeekQuery:
    """The arguments of `Transaction.peek`, as a store passes them on."""

    tags: TagFilter
    states: frozenset[TaskState]
    names: Sequence[str] | None
    after: int
    limit: int
    payload_bytes: int
    now: Instant


@dataclass(frozen=True, slots=True)
class Page:
    """Some tasks of a queue in id order; the next page begins after `next_after` (None: no more)."""

    tasks: tuple[StoredTask, ...]
    next_after: int | None = None


@dataclass(frozen=True, slots=True)
class Storage:
    """The limit on the payload bytes of all tasks of a store, and the bytes in use.

    `limit_bytes` None: no limit; then nothing is counted and `used_bytes` is 0.
    """

    limit_bytes: int | None = None
    used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Check:
    """The result of `Store.check`: each of `problems` is a broken invariant; a healthy store has none."""

    problems: tuple[str, ...]
    tasks: int


HELD_SECONDS: Final = 60.0
"""A snapshot that is held for so long is told."""


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """A snapshot of the store that somebody keeps open: until it ends, what was deleted since can't be removed.

    Args:
        kind: how it is held.
        name: of the process, the prepared transaction or the replication slot.
        pid: of the process; None: there is none, or it is not known.
        seconds: how long; None: nothing says since when.
        dead_rows: rows of PostgreSQL that are dead and still there.
        log_bytes: the length of SQLite's log.
        remedy: the statement or command that ends it.
    """

    kind: Literal[
        "active statement",
        "idle in transaction",
        "prepared transaction",
        "replication slot",
        "standby feedback",
        "reader of the file",
        "not to be seen",
    ]
    name: str
    pid: int | None = None
    application: str = ""
    user: str = ""
    host: str = ""
    seconds: float | None = None
    dead_rows: int = 0
    log_bytes: int = 0
    remedy: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Kind and name, which are the same while it is held."""
        return (self.kind, self.name)

    @property
    def sentence(self) -> str:
        """The holder, what that costs, and what ends it, in a sentence."""
        who = (("of", self.application), ("as", self.user), ("from", self.host), ("for", _shown(self.seconds)))
        costs = (
            f"{self.dead_rows:,} dead rows stay" if self.dead_rows else f"its log has {self.log_bytes / 1e6:,.0f} MB"
        )
        if self.kind == "not to be seen":
            return f"a snapshot is held by a session that this role may not see: {costs}; to see it: {self.remedy}"
        held = " ".join([f"{self.kind} {self.name}", *(f"{word} {what}" for word, what in who if what)])
        return f"a snapshot is held by {held}: {costs} until it ends; to end it: {self.remedy}"


NO_SAMPLES = Samples((), 0)


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of some tags of a queue at `now`: the input of a scaling decision.

    `heard` lists those of the requested workers that called this server lately; None without a server, as a store
    opened directly does not know its waiters. `upcoming` groups at most a thousand never leased, delayed tasks that
    become leasable within the requested time (see `stats.group_upcoming`). `held_by` names the settings that keep tasks
    from being leased, such as "per_tag.max_in_flight: 2"; `held_by_rate`: one of them is a rate, so time alone ends it.
    """

    now: Instant
    stats: QueueStats
    waiting: tuple[WaitingTask, ...] = ()
    samples: Samples = NO_SAMPLES
    live: tuple[LiveLease, ...] = ()
    seen: dict[str, Instant] = field(default_factory=dict)
    heard: tuple[WorkerActivity, ...] | None = None
    upcoming: tuple[WaitingTask, ...] = ()
    held_by: str = ""
    held_by_rate: bool = False


@dataclass(frozen=True, slots=True)
class ObservationQuery:
    """The parameters of one observation: see `Queues.observe`."""

    queue: str
    tags: TagFilter = ANY
    after: int = 0
    workers: tuple[str, ...] = ()
    ahead_seconds: float = 0.0


def _shown(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"
