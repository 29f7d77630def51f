"""Exchanges and their bindings: the queues that a message is for. Pure, but for the table itself; not thread-safe."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Binding:
    """A queue that an exchange delivers to. `is_task_queue`: its messages are tasks, which the publisher adds."""

    routing_key: str
    queue: str
    is_task_queue: bool


@dataclass(slots=True)
class Exchange:
    """An exchange: its type and its bindings."""

    kind: str
    bindings: dict[Binding, None] = field(default_factory=dict)


class Exchanges:
    """The exchanges of all namespaces."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Exchange] = {}

    def declare(self, space: str, exchange: str, kind: str) -> bool:
        """Record the type of an exchange, unless it has one; return whether it is new."""
        if (space, exchange) in self._known:
            return False
        self._known[space, exchange] = Exchange(kind)
        return True

    def bind(self, space: str, exchange: str, binding: Binding) -> None:
        """Have an exchange deliver to a queue."""
        self._known.setdefault((space, exchange), Exchange("direct")).bindings[binding] = None

    def unbind(self, space: str, exchange: str, binding: Binding) -> None:
        """End a binding, if there is one."""
        if (space, exchange) in self._known:
            self._known[space, exchange].bindings.pop(binding, None)

    def drop_queue(self, space: str, queue: str) -> bool:
        """End all bindings of a queue; return whether there was one."""
        is_any = False
        for (of, _), exchange in self._known.items():
            if of == space:
                for binding in [one for one in exchange.bindings if one.queue == queue]:
                    del exchange.bindings[binding]
                    is_any = True
        return is_any

    def bindings(self, space: str, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange."""
        known = self._known.get((space, exchange))
        return [] if known is None else list(known.bindings)

    def matching(self, space: str, exchange: str, routing_key: str) -> list[Binding]:
        """Return the bindings by which an exchange delivers a message."""
        known = self._known.get((space, exchange))
        if known is None:
            return []
        return [one for one in known.bindings if matches(known.kind, one.routing_key, routing_key)]

    def is_doubtful(self, space: str, exchange: str, routing_key: str) -> bool:
        """Return whether a message is for no queue, as far as is known, or for all of a fan-out.

        With topics it is usual that nobody listens, and messages are many (Celery's events).
        """
        known = self._known.get((space, exchange))
        if known is None or known.kind == "fanout":
            return True
        return known.kind == "direct" and not self.matching(space, exchange, routing_key)

    def kinds(self) -> Iterator[tuple[str, str, str]]:
        """Return namespace, name and type of each exchange."""
        return ((space, exchange, known.kind) for (space, exchange), known in self._known.items())

    def all_bindings(self) -> Iterator[tuple[str, str, Binding]]:
        """Return namespace, exchange and binding of each."""
        return (
            (space, exchange, binding) for (space, exchange), known in self._known.items() for binding in known.bindings
        )


def matches(kind: str, bound_key: str, routing_key: str) -> bool:
    """Return whether an exchange of this type delivers a message with this routing key to a queue bound by that."""
    if kind == "fanout":
        return True
    if kind != "topic":
        return bound_key == routing_key
    return _topic_matches(bound_key.split("."), routing_key.split(".") if routing_key else [])


def _topic_matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Match AMQP's topics: `*` is one word, `#` any number of them, also none."""
    ends = {0}
    for one in pattern:
        if one == "#":
            ends = set(range(min(ends), len(words) + 1))
        else:
            ends = {end + 1 for end in ends if end < len(words) and one in ("*", words[end])}
        if not ends:
            return False
    return len(words) in ends
