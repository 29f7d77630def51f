"""Messages that are no tasks: remote control, replies, events and broadcasts between programs that use kombu.

They are kept in memory for as long as a consumer reads them, and lost with the process: a durable task a heartbeat
would be a sync of the disk every other second. Processes of one store tell each other where mailboxes are (ADR 39):
verbs leave such news to be sent, and `receive` takes those of others. Thread-safe; time is an argument.
"""

from collections.abc import Iterable, Sequence
from threading import Lock

from queue_core.celery.mailboxes.exchanges import Binding, Exchanges
from queue_core.celery.mailboxes.homes import Homes, Key
from queue_core.celery.mailboxes.mailbox import Letter, Popped
from queue_core.celery.mailboxes.news import EVERYBODY, Announcement, Clearing, Echo, Mail, News, Posted, Removal
from queue_core.celery.mailboxes.table import BoxTable, Wake, check_copies, check_ttl
from queue_core.clock import NEVER, Instant

MAX_PRIORITY = 9


class Mailboxes:
    """The mailboxes, exchanges and bindings of all namespaces of one server or one process.

    A message for a mailbox that several processes have goes to the one where it was declared last, so to one consumer.
    """

    def __init__(self, node: str = "") -> None:
        """Args:
        node: the name of this process among those of its store; "": it has none, and is alone.
        """
        self._begin(node)

    def _begin(self, node: str) -> None:
        self._boxes = BoxTable()
        self._exchanges = Exchanges(self._boxes.names)
        self._node = node
        self._homes = Homes()
        self._peers: set[str] = set()
        self._outgoing: list[tuple[str, News]] = []
        self._lock = Lock()

    def renew_after_fork(self, node: str) -> None:
        """Begin anew, as `node`, in the child of a fork: the mailboxes are the parent's, and so is the lock."""
        table = self._exchanges
        self._begin(node)
        for space, exchange, kind in table.kinds():
            self._exchanges.declare(space, exchange, kind)
        for space, exchange, binding in table.all_bindings():
            if binding.is_task_queue:
                self._exchanges.bind(space, exchange, binding)

    # -- mailboxes, exchanges and bindings --------------------------------------------------------------------------

    def declare(
        self, space: str, queue: str, *, expires_seconds: float | None, ttl_seconds: float | None, now: Instant
    ) -> None:
        """Create a mailbox unless there is one, and have its messages come here.

        Raises `InvalidRequestError` beyond the limits.
        """
        key = (space, queue)
        with self._lock:
            self._expire(now)
            box = self._boxes.declare(key, expires_seconds=expires_seconds, ttl_seconds=ttl_seconds, now=now)
            elsewhere = self._homes.newest(key)
            box.declared_at = now if elsewhere is None else max(now, Instant(elsewhere[0] + 1))
            self._spread(Announcement(boxes=((key, box.declared_at),)))

    def declare_exchange(self, space: str, exchange: str, kind: str) -> None:
        """Record the type of an exchange, unless it has one. Raises `InvalidRequestError` beyond the limit."""
        with self._lock:
            self._exchanges.check_exchange(space, exchange)
            if self._exchanges.declare(space, exchange, kind):
                self._spread(Announcement(kinds=((space, exchange, kind),)))

    def bind(self, space: str, exchange: str, binding: Binding) -> None:
        """Have an exchange deliver to a queue. Raises `InvalidRequestError` beyond the limits."""
        with self._lock:
            self._exchanges.check_binding(space, exchange, binding)
            self._exchanges.bind(space, exchange, binding)
            # Also a known one: the end of the queue that it was known of may be on its way.
            self._spread(Announcement(bindings=((space, exchange, binding),)))

    def unbind(self, space: str, exchange: str, binding: Binding) -> None:
        """End a binding, if there is one."""
        with self._lock:
            self._exchanges.unbind(space, exchange, binding)
            self._spread(Removal(bindings=((space, exchange, binding),)))

    def delete(self, space: str, queue: str) -> int:
        """Drop a queue's mailbox and its bindings; return how many messages went with it here."""
        key = (space, queue)
        with self._lock:
            box, elsewhere = self._boxes.get(key), self._homes.newest(key)
            until = max(NEVER if box is None else box.declared_at, NEVER if elsewhere is None else elsewhere[0])
            count, is_known = 0 if box is None else len(box.letters), until > NEVER
            if self._delete(key, until) or is_known:
                self._spread(Clearing(space, queue, until))
            return count

    def bindings(self, space: str, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange."""
        with self._lock:
            return self._exchanges.bindings(space, exchange)

    def size(self, space: str, queue: str, *, now: Instant) -> int | None:
        """Return the number of messages here, 0 where another process has the mailbox; None: there is none."""
        with self._lock:
            self._expire(now)
            if (space, queue) not in self._boxes and self._homes.newest((space, queue)) is None:
                return None
            return self._boxes.count((space, queue), now)

    def purge(self, space: str, queue: str) -> int:
        """Drop all messages; return how many were here."""
        with self._lock:
            if self._homes.newest((space, queue)) is not None:
                self._spread(Clearing(space, queue))
            return self._boxes.clear((space, queue))

    # -- messages ---------------------------------------------------------------------------------------------------

    def put(self, space: str, queue: str, posted: Posted, *, now: Instant) -> bool:
        """Put a message into a mailbox; False where there is none."""
        wakes: dict[Wake, None] = {}
        check_ttl(posted.ttl_seconds)
        with self._lock:
            self._expire(now)
            is_found = self._route(space, [queue], posted, now, wakes)
        _call(wakes)
        return is_found

    def publish(self, space: str, exchange: str, routing_key: str, posted: Posted, *, now: Instant) -> list[str]:
        """Put a message into the mailboxes that an exchange delivers it to; return the task queues it is for, too."""
        wakes: dict[Wake, None] = {}
        check_ttl(posted.ttl_seconds)
        with self._lock:
            self._expire(now)
            self._exchanges.check_routing_key(space, exchange, routing_key)
            matching = self._exchanges.matching(space, exchange, routing_key)
            task_queues = list(dict.fromkeys(one.queue for one in matching if one.is_task_queue))
            mailboxes = list(dict.fromkeys(one.queue for one in matching if not one.is_task_queue))
            check_copies(posted, len(mailboxes))
            self._route(space, mailboxes, posted, now, wakes)
        _call(wakes)
        return task_queues

    def is_doubtful(self, space: str, exchange: str, routing_key: str) -> bool:
        """Return whether a queue that is not known here yet may be missed: see `Exchanges.is_doubtful`."""
        with self._lock:
            return self._exchanges.is_doubtful(space, exchange, routing_key)

    def pop(self, space: str, queues: Sequence[str], count: int, *, now: Instant) -> list[Popped]:
        """Take up to `count` messages, those of higher priority first, and oldest first; a few MiB at most."""
        keys = [(space, queue) for queue in queues]
        with self._lock:
            self._expire(now, reading=keys)
            return self._boxes.pop(keys, count, now)

    def is_any(self, space: str, queues: Sequence[str], *, now: Instant) -> bool:
        """Return whether one of these mailboxes has a message."""
        with self._lock:
            self._expire(now, reading=[(space, queue) for queue in queues])
            boxes = [self._boxes.get((space, queue)) for queue in queues]
            return any(box.letters for box in boxes if box is not None)

    def missing(self, space: str, queues: Sequence[str], *, moved: bool = False) -> list[str]:
        """Return those of these mailboxes that are not here; with `moved`, also those declared elsewhere since.

        Their consumer declares them again, as their messages do not come here.
        """
        with self._lock:
            if not moved:
                return [queue for queue in queues if (space, queue) not in self._boxes]
            return [queue for queue in queues if self._home_of((space, queue)) != self._node]

    def watch(self, space: str, queues: Sequence[str], wake: Wake) -> None:
        """Have `wake` called whenever a message arrives in one of these, from the thread that puts it there.

        Raises `InvalidRequestError` beyond the limit.
        """
        with self._lock:
            self._boxes.watch([(space, queue) for queue in queues], wake)

    def unwatch(self, wake: Wake, *, now: Instant) -> None:
        """End what `watch` began. The mailboxes were in use until now."""
        with self._lock:
            self._boxes.unwatch(wake, now=now)

    def wake_all(self) -> None:
        """Call every watcher."""
        with self._lock:
            watchers = self._boxes.all_watchers()
        _call(watchers)

    # -- other processes --------------------------------------------------------------------------------------------

    @property
    def node(self) -> str:
        """The name of this process; "": it is alone."""
        return self._node

    @property
    def has_outgoing(self) -> bool:
        """Return whether there is news to send."""
        return bool(self._outgoing)

    @property
    def is_used(self) -> bool:
        """Return whether there is a mailbox here."""
        return len(self._boxes) > 0

    def announce(self) -> None:
        """Tell the other processes of all that there is here, and ask them to do the same."""
        with self._lock:
            self._peers.clear()
            self._outgoing.append((EVERYBODY, self._announcement(wants_answer=True)))

    def announce_to(self, nodes: Iterable[str]) -> None:
        """Do the same with some processes only."""
        with self._lock:
            self._outgoing += [(node, self._announcement(wants_answer=True)) for node in nodes]

    def leave(self) -> None:
        """Tell the other processes that there is nothing here any more."""
        with self._lock:
            self._spread(Announcement(is_whole=True))

    def take_outgoing(self) -> list[tuple[str, News]]:
        """Return the news to send, in order, each to a process or to `EVERYBODY`, and forget them."""
        with self._lock:
            outgoing, self._outgoing = self._outgoing, []
            return outgoing

    @property
    def has_peers(self) -> bool:
        """Return whether other processes have said what they have."""
        return bool(self._peers)

    def unknown(self, nodes: Iterable[str]) -> set[str]:
        """Return those of these processes that have not said yet which mailboxes they have."""
        with self._lock:
            return {*nodes} - self._peers - {self._node}

    def keep_only(self, nodes: Iterable[str]) -> list[str]:
        """Forget the mailboxes of all processes but these, as the others have ended; return those."""
        with self._lock:
            gone = sorted((self._homes.nodes() | self._peers) - {*nodes})
            for node in gone:
                self._drop_homes(node, self._homes.mailboxes_of(node))
            self._peers.difference_update(gone)
            return gone

    def receive(self, sender: str, news: Sequence[News], *, now: Instant) -> None:
        """Take the news of another process; its own, which come back to it, are passed over."""
        if sender == self._node:
            return
        wakes: dict[Wake, None] = {}
        with self._lock:
            for one in news:
                match one:
                    case Announcement():
                        self._note(sender, one, now)
                    case Removal():
                        for space, exchange, binding in one.bindings:
                            self._exchanges.unbind(space, exchange, binding)
                        self._drop_homes(sender, one.boxes)
                    case Mail():
                        self._expire(now)
                        self._route(one.space, one.queues.get(self._node, ()), one.posted, now, wakes)
                    case Clearing():
                        self._clear(one)
                    case Echo():
                        pass
        _call(wakes)

    def _note(self, sender: str, announced: Announcement, now: Instant) -> None:
        """Note what another process has; a mailbox that moved there takes its messages along."""
        for space, exchange, kind in announced.kinds:
            self._exchanges.declare(space, exchange, kind)
        for space, exchange, binding in announced.bindings:
            self._exchanges.bind(space, exchange, binding)
        for key, at in announced.boxes:
            self._homes.note(sender, key, at)
            box = self._boxes.get(key)
            if box is not None and box.letters and self._home_of(key) != self._node:
                letters = box.letters if self._boxes.count(key, now) else []
                self._boxes.clear(key)
                for letter in letters:
                    self._route(key[0], [key[1]], _posted_again(letter, now), now, {})
        if announced.is_whole:
            kept = {key for key, _ in announced.boxes}
            self._drop_homes(sender, [key for key in self._homes.mailboxes_of(sender) if key not in kept])
            self._peers.add(sender)
        if announced.wants_answer:
            self._outgoing.append((sender, self._announcement(wants_answer=False)))

    def _announcement(self, *, wants_answer: bool) -> Announcement:
        bindings = [
            (space, exchange, binding)
            for space, exchange, binding in self._exchanges.all_bindings()
            if binding.is_task_queue or (space, binding.queue) in self._boxes
        ]
        return Announcement(
            tuple((key, box.declared_at) for key, box in self._boxes.items()),
            tuple(self._exchanges.kinds()),
            tuple(bindings),
            is_whole=True,
            wants_answer=wants_answer,
        )

    def _clear(self, clearing: Clearing) -> None:
        key = (clearing.space, clearing.queue)
        if clearing.deleted_until is not None:
            self._delete(key, clearing.deleted_until)
        else:
            self._boxes.clear(key)

    def _delete(self, key: Key, until: Instant) -> bool:
        """Drop a queue as it was declared up to an instant; return whether that ended a binding."""
        for node, at in self._homes.all_of(key).items():
            if at <= until:
                self._homes.drop(node, [key])
        box = self._boxes.get(key)
        if box is not None and box.declared_at <= until:
            self._drop(key)
        if key in self._boxes or self._homes.newest(key) is not None:
            return False
        return self._exchanges.drop_queue(*key)

    def _drop_homes(self, node: str, keys: Iterable[Key]) -> None:
        for space, queue in self._homes.drop(node, keys):
            if (space, queue) not in self._boxes:
                self._exchanges.drop_queue(space, queue)

    def _spread(self, news: News) -> None:
        """Leave news to be sent to all, unless this process is alone."""
        if self._node:
            self._outgoing.append((EVERYBODY, news))

    def _home_of(self, key: Key) -> str | None:
        """Return the process that a mailbox's messages go to; None: there is no such mailbox."""
        box, elsewhere = self._boxes.get(key), self._homes.newest(key)
        if elsewhere is None:
            return None if box is None else self._node
        return self._node if box is not None and (box.declared_at, self._node) > elsewhere else elsewhere[1]

    # -- with the lock held -----------------------------------------------------------------------------------------

    def _route(self, space: str, queues: Iterable[str], posted: Posted, now: Instant, wakes: dict[Wake, None]) -> bool:
        """Put a message into mailboxes here, and have it sent for those elsewhere; False: there is none of them."""
        is_found, elsewhere = False, dict[str, list[str]]()
        for queue in queues:
            home = self._home_of((space, queue))
            is_found = is_found or home is not None
            if home == self._node:
                self._boxes.put((space, queue), posted, now)
                wakes |= dict.fromkeys(self._boxes.watchers((space, queue)))
            elif home is not None:
                elsewhere.setdefault(home, []).append(queue)
        if elsewhere:
            recipient = next(iter(elsewhere)) if len(elsewhere) == 1 else EVERYBODY
            self._outgoing.append((recipient, Mail(space, elsewhere, posted)))
        self._boxes.make_room(space)
        return is_found

    def _expire(self, now: Instant, *, reading: Sequence[Key] = ()) -> None:
        """Drop mailboxes that nobody reads. A reader that waits keeps its own."""
        over = self._boxes.expired(now, reading=reading)
        for key in over:
            self._drop(key)
        if over:
            self._spread(Removal(boxes=tuple(over)))

    def _drop(self, key: Key) -> None:
        """Drop a mailbox here, and its bindings unless another process has it as well."""
        if self._homes.newest(key) is None:
            self._exchanges.drop_queue(*key)
        self._boxes.drop(key)


def _posted_again(letter: Letter, now: Instant) -> Posted:
    left = None if letter.expires_at is None else (letter.expires_at - now) / 1_000_000
    return Posted(letter.text, left, letter.priority)


def _call(wakes: Iterable[Wake]) -> None:
    for wake in wakes:
        wake()
