"""Exchanges and their bindings: the queues that a message is for. Pure, but for the table itself; not thread-safe."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from queue_core.celery.mailboxes.allowance import Allowance, text_bytes
from queue_core.celery.mailboxes.topics import MAX_WORDS, Topics, words_of
from queue_core.errors import InvalidRequestError

EXCHANGE_BYTES = 700
BINDING_BYTES = 700
"""What an exchange and a binding take beside their names."""
MAX_EXCHANGE_BYTES = 8 << 20
"""Bindings of one exchange, about 10,000: an answer lists them all."""
MAX_PATTERN_WORDS = 50_000
"""Words of all patterns of one exchange: each message is compared with all of them."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A queue that an exchange delivers to. `is_task_queue`: its messages are tasks, which the publisher adds."""

    routing_key: str
    queue: str
    is_task_queue: bool

    @property
    def size(self) -> int:
        """The memory that it takes."""
        return BINDING_BYTES + text_bytes(self.routing_key, self.queue)


@dataclass(slots=True)
class Exchange:
    """An exchange: its type and its bindings, also those of each routing key."""

    kind: str
    bindings: dict[Binding, None] = field(default_factory=dict)
    of_key: dict[str, dict[Binding, None]] = field(default_factory=dict)
    size: int = 0
    pattern_words: int = 0
    _patterns: Topics | None = None
    """Made of the keys with wildcards when a message comes, and made again after they changed."""

    def add(self, binding: Binding) -> bool:
        """Add a binding; return whether it is new."""
        if binding in self.bindings:
            return False
        self.bindings[binding] = None
        self.size += binding.size
        if binding.routing_key not in self.of_key:
            self.of_key[binding.routing_key] = {}
            self._key_changed(binding.routing_key, 1)
        self.of_key[binding.routing_key][binding] = None
        return True

    def remove(self, binding: Binding) -> bool:
        """Remove a binding; return whether there was one."""
        if binding not in self.bindings:
            return False
        del self.bindings[binding], self.of_key[binding.routing_key][binding]
        self.size -= binding.size
        if not self.of_key[binding.routing_key]:
            del self.of_key[binding.routing_key]
            self._key_changed(binding.routing_key, -1)
        return True

    def _key_changed(self, key: str, sign: int) -> None:
        if self.kind == "topic" and is_pattern(key):
            self.pattern_words += sign * (1 + len(words_of(key)))
            self._patterns = None

    def matching(self, routing_key: str) -> list[Binding]:
        """Return the bindings by which it delivers a message."""
        if self.kind == "fanout":
            return list(self.bindings)
        found = list(self.of_key.get(routing_key, ()))
        if not self.pattern_words:
            return found
        if self._patterns is None:
            self._patterns = Topics(key for key in self.of_key if is_pattern(key))
        if is_pattern(routing_key):
            found = []  # it may be one of the patterns itself
        return found + [one for key in self._patterns.matching(routing_key) for one in self.of_key[key]]


def is_pattern(key: str) -> bool:
    """Return whether a topic has wildcards."""
    return "#" in key or "*" in key


class Exchanges:
    """The exchanges of all namespaces. `allowance` counts their names and bindings."""

    def __init__(self, allowance: Allowance) -> None:
        self._known: dict[tuple[str, str], Exchange] = {}
        self._of_queue: dict[tuple[str, str], dict[tuple[str, Binding], None]] = {}
        self._unbound: dict[str, dict[str, None]] = {}
        """The exchanges of each namespace that deliver to no queue."""
        self._allowance = allowance

    def check_exchange(self, space: str, exchange: str) -> None:
        """Raise `InvalidRequestError` where there is no room for one more; those without bindings make room."""
        if (space, exchange) not in self._known:
            self._allowance.check(space, _exchange_bytes(space, exchange), free=lambda: self._drop_unbound(space))

    def check_binding(self, space: str, exchange: str, binding: Binding) -> None:
        """Raise `InvalidRequestError` where there is no room for one more, or its topic has too many words."""
        self.check_exchange(space, exchange)
        known = self._known.get((space, exchange), Exchange("direct"))
        if binding in known.bindings:
            return
        if known.size + binding.size > MAX_EXCHANGE_BYTES:
            raise InvalidRequestError(
                f"the bindings of exchange {exchange!r} take {MAX_EXCHANGE_BYTES >> 20} MiB "
                f"({len(known.bindings)} of them), which is the limit: end some"
            )
        if known.kind == "topic":
            check_words(binding.routing_key)
            if is_pattern(binding.routing_key) and known.pattern_words > MAX_PATTERN_WORDS:
                raise InvalidRequestError(
                    f"the patterns of exchange {exchange!r} have {MAX_PATTERN_WORDS} words, "
                    "which is the limit: end some"
                )
        self._allowance.check(space, binding.size, free=lambda: self._drop_unbound(space, but=exchange))

    def check_routing_key(self, space: str, exchange: str, routing_key: str) -> None:
        """Raise `InvalidRequestError` for a key of too many words, where topics are compared with it."""
        known = self._known.get((space, exchange))
        if known is not None and known.kind == "topic":
            check_words(routing_key)

    def declare(self, space: str, exchange: str, kind: str) -> bool:
        """Record the type of an exchange, unless it has one; return whether it is new."""
        if (space, exchange) in self._known:
            return False
        self._known[space, exchange] = Exchange(kind)
        self._unbound.setdefault(space, {})[exchange] = None
        self._allowance.add(space, _exchange_bytes(space, exchange))
        return True

    def bind(self, space: str, exchange: str, binding: Binding) -> None:
        """Have an exchange deliver to a queue."""
        self.declare(space, exchange, "direct")
        if self._known[space, exchange].add(binding):
            self._is_bound(space, exchange)
            self._of_queue.setdefault((space, binding.queue), {})[exchange, binding] = None
            self._allowance.add(space, binding.size)

    def unbind(self, space: str, exchange: str, binding: Binding) -> None:
        """End a binding, if there is one."""
        known = self._known.get((space, exchange))
        if known is None or not known.remove(binding):
            return
        self._allowance.add(space, -binding.size)
        of_queue = self._of_queue[space, binding.queue]
        del of_queue[exchange, binding]
        if not of_queue:
            del self._of_queue[space, binding.queue]
        if not known.bindings:
            self._unbound.setdefault(space, {})[exchange] = None

    def drop_queue(self, space: str, queue: str) -> bool:
        """End all bindings of a queue; return whether there was one."""
        bound = list(self._of_queue.get((space, queue), ()))
        for exchange, binding in bound:
            self.unbind(space, exchange, binding)
        return bool(bound)

    def bindings(self, space: str, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange."""
        known = self._known.get((space, exchange))
        return [] if known is None else list(known.bindings)

    def matching(self, space: str, exchange: str, routing_key: str) -> list[Binding]:
        """Return the bindings by which an exchange delivers a message."""
        known = self._known.get((space, exchange))
        return [] if known is None else known.matching(routing_key)

    def is_doubtful(self, space: str, exchange: str, routing_key: str) -> bool:
        """Return whether a message is for no queue, as far as is known, or for all of a fan-out.

        With topics it is usual that nobody listens, and messages are many (Celery's events).
        """
        known = self._known.get((space, exchange))
        if known is None or known.kind == "fanout":
            return True
        return known.kind == "direct" and not known.matching(routing_key)

    def kinds(self) -> Iterator[tuple[str, str, str]]:
        """Return namespace, name and type of each exchange."""
        return ((space, exchange, known.kind) for (space, exchange), known in self._known.items())

    def all_bindings(self) -> Iterator[tuple[str, str, Binding]]:
        """Return namespace, exchange and binding of each."""
        return (
            (space, exchange, binding) for (space, exchange), known in self._known.items() for binding in known.bindings
        )

    def _drop_unbound(self, space: str, *, but: str = "") -> bool:
        """Forget the oldest exchange of a namespace that delivers to no queue; return whether there was one."""
        exchange = next((one for one in self._unbound.get(space, ()) if one != but), None)
        if exchange is None:
            return False
        del self._known[space, exchange]
        self._is_bound(space, exchange)
        self._allowance.add(space, -_exchange_bytes(space, exchange))
        return True

    def _is_bound(self, space: str, exchange: str) -> None:
        unbound = self._unbound.get(space, {})
        unbound.pop(exchange, None)
        if not unbound:
            self._unbound.pop(space, None)


def _exchange_bytes(space: str, exchange: str) -> int:
    return EXCHANGE_BYTES + text_bytes(space, exchange)


def check_words(topic: str) -> None:
    """Raise `InvalidRequestError` for more words than a topic may have."""
    if (count := len(words_of(topic))) > MAX_WORDS:
        raise InvalidRequestError(f"a topic may have at most {MAX_WORDS} words: {count}")


def matches(kind: str, bound_key: str, routing_key: str) -> bool:
    """Return whether an exchange of this type delivers a message with this routing key to a queue bound by that."""
    exchange = Exchange(kind)
    exchange.add(Binding(bound_key, "", is_task_queue=False))
    return bool(exchange.matching(routing_key))
