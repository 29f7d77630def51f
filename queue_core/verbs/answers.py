"""The forms of responses that have a verb's result as their only member, or nothing."""

from typing_extensions import TypedDict

from queue_core.stats import FinishedLease, TagStats
from queue_core.task import QueueSpec
from queue_core.verbs import NameOutcome
from queue_core.verbs.registration import Registration


class Count(TypedDict):
    """The number of tasks."""

    count: int


class Done(TypedDict):
    """An empty object: it is done."""


class NameOutcomes(TypedDict):
    """One outcome per name, in order."""

    outcomes: list[NameOutcome]


class TagCounts(TypedDict):
    """Counts per tag; null is untagged."""

    tags: list[TagStats]


class ReleasedLeases(TypedDict):
    """The released leases."""

    released: list[FinishedLease]


class Created(TypedDict):
    """Return whether the queue is new."""

    created: bool


class Retired(TypedDict):
    """False when the worker holds a lease."""

    retired: bool


class Held(TypedDict):
    """Return whether the holder has the lead."""

    held: bool


class KeptText(TypedDict):
    """The text; null: none is kept."""

    text: str | None


class LeaseHistory(TypedDict):
    """Ended leases, newest first, and where the next page begins."""

    leases: list[FinishedLease]
    next_before: int | None


class QueueListReply(TypedDict):
    """All queues by name."""

    queues: list[QueueSpec]


class RegistrationList(TypedDict):
    """Registrations that hold now, by name; `until` is their end unless they are renewed."""

    registrations: list[Registration]
