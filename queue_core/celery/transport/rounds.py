"""One round of a transport: what its channels have room for, the calls that fetch it, and the order of delivery.

The calls may be made beside the event loop. Room is reckoned, and messages are delivered, in the loop's thread alone.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from queue_core.celery.transport.envelope import KombuMessage, priority_of
from queue_core.celery.transport.keeper import Ending, LeaseKeeper
from queue_core.clock import Instant
from queue_core.errors import StoreUnavailableError

LETTERS_PER_ROUND = 100
SHORTEST_GATHERING_SECONDS = 0.001
"""Calls that take less are not worth waiting for others."""
LONGEST_GATHERING_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message on its way to its consumer.

    Args:
        at: when it was published.
        leased_at: when its task was leased; 0: it comes from a mailbox.
        is_counted: it is a task, and takes room until it is acknowledged.
        prefetch_eta: of a task that is given to a worker a little before it is due.
    """

    queue: str
    at: int
    message: KombuMessage
    leased_at: int = 0
    is_counted: bool = False
    prefetch_eta: Instant | None = None

    @property
    def tag(self) -> str:
        """The name of this delivery."""
        return str(self.message["properties"]["delivery_tag"])


class RoundChannel(Protocol):
    """A channel as rounds use it: they fetch what its queues have, deliver it, and give back what nobody takes."""

    def letters(self, queues: Sequence[str], count: int, *, no_ack: bool) -> list[Delivery]:
        """Take messages out of mailboxes."""

    def lease(self, queue: str, count: int) -> tuple[list[Delivery], int]:
        """Lease up to `count` tasks; return the messages, and how many leases were granted."""

    def takes(self, delivery: Delivery) -> bool:
        """Return whether a task that was leased is to be delivered."""

    def is_unacknowledged(self, tag: str) -> bool:
        """Return whether this message was delivered and not acknowledged yet."""

    def end_lease(self, tag: str, ending: Ending) -> None:
        """End a lease at the next flush."""

    def give_back(self, delivery: Delivery) -> None:
        """Give back what could not be delivered."""


Addressed: TypeAlias = tuple[RoundChannel, Delivery]
"""A message and the channel that consumes it."""


@dataclass(slots=True)
class ChannelRoom:
    """The queues that a channel consumes, and how many messages it takes beside what it has.

    Args:
        mailboxes: those whose messages need no acknowledgement, and no room.
        counted_mailboxes: all others.
    """

    channel: RoundChannel
    task_queues: Sequence[str]
    mailboxes: Sequence[str]
    counted_mailboxes: Sequence[str]
    room: int

    def letters(self) -> list[Addressed]:
        """Take messages out of mailboxes."""
        found: list[Delivery] = []
        if self.mailboxes:
            found += self.channel.letters(self.mailboxes, LETTERS_PER_ROUND, no_ack=True)
        if self.counted_mailboxes and self.room > 0:
            counted = self.channel.letters(self.counted_mailboxes, min(self.room, LETTERS_PER_ROUND), no_ack=False)
            self.room -= len(counted)
            found += counted
        return [(self.channel, letter) for letter in found]

    def tasks(self) -> tuple[list[Addressed], bool]:
        """Lease from each queue while there is room; return whether one may have more."""
        found: list[Addressed] = []
        may_be_more = False
        for queue in self.task_queues:
            if self.room <= 0:
                break
            deliveries, leased = self.channel.lease(queue, self.room)
            may_be_more = may_be_more or leased == self.room
            self.room -= len(deliveries)
            found += [(self.channel, delivery) for delivery in deliveries]
        return found, may_be_more


@dataclass(frozen=True, slots=True)
class Fetched:
    """The yield of a round's calls: messages of mailboxes, and leased tasks in the order of the store."""

    letters: Sequence[Addressed] = ()
    tasks: Sequence[Addressed] = ()
    may_be_more: bool = False


class Gathering:
    """Decides whether acknowledgements wait for those of tasks that have just begun, so that they share a call.

    Where a call waits for a disk, tasks that are shorter than it would else take turns: each would wait for the call of
    the one before. Nothing waits longer than a call takes, nor for tasks that have run for longer.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._began_at: float | None = None
        self._begun: list[tuple[float, RoundChannel, str]] = []

    def call_began(self, *, now: float) -> None:
        """Note the beginning of a call that ends leases."""
        self._began_at = now

    def call_ended(self, delivered: Sequence[Addressed], *, now: float) -> None:
        """Note the end of a call, and the tasks that it brought."""
        if self._began_at is not None:
            self._seconds += (now - self._began_at - self._seconds) / 8
            self._began_at = None
        self._begun += [(now, channel, delivery.tag) for channel, delivery in delivered if delivery.is_counted]

    def pause_seconds(self, *, now: float) -> float:
        """Return how long to wait for acknowledgements; 0: no longer."""
        longest = min(self._seconds, LONGEST_GATHERING_SECONDS)
        self._begun = [one for one in self._begun if now - one[0] < longest and one[1].is_unacknowledged(one[2])]
        if longest < SHORTEST_GATHERING_SECONDS or not self._begun:
            return 0.0
        return longest - (now - self._begun[-1][0])


class Fetcher:
    """Makes the calls of a round; one round at a time."""

    def __init__(self, keeper: LeaseKeeper) -> None:
        self._keeper = keeper
        self._mail_until = 0
        """All messages that were put into mailboxes before this instant of the store have been taken."""

    def fetch(self, rooms: Sequence[ChannelRoom], *, is_mail_due: bool) -> Fetched:
        """End leases, lease within each channel's room, and take messages. Raises `StoreUnavailableError`."""
        letters: list[Addressed] = []
        tasks: list[Addressed] = []
        may_be_more = False
        # What is acknowledged meanwhile is deleted by the next round's lease, instead of by a call of its own.
        spared = self._keeper.held()
        try:
            if is_mail_due:
                letters += _letters(rooms)
            for one in rooms:
                found, is_filled = one.tasks()
                tasks += found
                may_be_more = may_be_more or is_filled
            self._keeper.flush(spared=spared)
            # A message that was put before one of these tasks was must not come after it. Of a backlog's, it has come.
            if any(task.at > self._mail_until for _, task in tasks):
                until = max(task.leased_at for _, task in tasks)
                more = _letters(rooms)
                letters += more
                if len(more) < LETTERS_PER_ROUND:
                    self._mail_until = until
        except BaseException:
            give_back([*letters, *tasks])
            raise
        return Fetched(letters, tasks, may_be_more=may_be_more or bool(letters))


def _letters(rooms: Sequence[ChannelRoom]) -> list[Addressed]:
    return [letter for one in rooms for letter in one.letters()]


def merged(letters: Sequence[Addressed], tasks: Sequence[Addressed]) -> list[Addressed]:
    """Merge messages in the order of publishing into tasks, which keep their own order (of priority)."""
    waiting = sorted(letters, key=lambda one: (-priority_of(one[1].message), one[1].at))
    result: list[Addressed] = []
    for task in tasks:
        while waiting and waiting[0][1].at <= task[1].at:
            result.append(waiting.pop(0))
        result.append(task)
    return result + waiting


def give_back(deliveries: Sequence[Addressed]) -> None:
    """Give back what could not be delivered."""
    for channel, delivery in deliveries:
        with suppress(StoreUnavailableError):
            channel.give_back(delivery)
