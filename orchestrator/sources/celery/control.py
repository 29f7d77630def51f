"""Talk to the nodes of a Celery fleet as Celery's own tools do: hear their events, ask them, stop their consumers."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal

from kombu import Consumer, Exchange, Queue
from kombu.pidbox import Mailbox

from orchestrator.sources.celery.connections import as_unavailable, connect, opened, release
from orchestrator.sources.celery.messages import (
    NodeSignal,
    active_in,
    answers_in,
    etas_in,
    queues_in,
    signals_in,
)

ANSWER_SECONDS: Final = 1.0
"""How long nodes may take to answer; a node that runs a task in its main process answers after it."""
PING_SECONDS: Final = 0.5
EVENTS_EXPIRE_SECONDS: Final = 60.0
EVENT_TTL_SECONDS: Final = 5.0
NEAR_ETA_SECONDS: Final = 60.0
"""A node that keeps a task whose time comes sooner is not retired."""
CONFIRMATIONS: Final = 2
FENCE_POLLS: Final = 20
FENCE_POLL_SECONDS: Final = 0.05


class EventListener:
    """Hears the events of all nodes, through a queue of its own that goes with it. Belongs to one thread."""

    def __init__(
        self, url: str, options: Mapping[str, object], *, exchange: str, on_signal: Callable[[NodeSignal], None]
    ) -> None:
        self._url = url
        self._options = options
        self._exchange = exchange
        self._on_signal = on_signal
        self._connection: Any = None
        self._consumer: Any = None

    def drain(self, *, seconds: float) -> bool:
        """Hear events for up to so many seconds. False while there is nothing to hear: no node was ever started.

        Raises `SourceUnavailableError`; the next call connects again.
        """
        with as_unavailable("hear the workers", self._url):
            try:
                if self._consumer is None and not self._listen():
                    return False
                try:
                    self._connection.drain_events(timeout=seconds)
                except TimeoutError:
                    return True
                for _ in range(1_000):  # all that has come, without waiting
                    try:
                        self._connection.drain_events(timeout=0.001)
                    except TimeoutError:
                        break
            except Exception:
                self.close()
                raise
        return True

    def _listen(self) -> bool:
        if self._connection is None:
            self._connection = opened(connect(self._url, self._options))
        connection = self._connection
        driver = connection.transport.driver_type
        channel = connection.channel()
        if driver == "amqp":
            # The fleet declares its exchange as it likes: it is only looked for.
            try:
                channel.exchange_declare(self._exchange, "topic", passive=True)
            except connection.channel_errors:
                return False
        exchange = Exchange(
            self._exchange,
            type="fanout" if driver in ("redis", "gcpubsub") else "topic",
            no_declare=driver == "amqp",
        )
        queue = Queue(
            f"celeryev.towline.{threading.get_ident()}.{id(self)}",
            exchange=exchange,
            routing_key="#",
            auto_delete=True,
            durable=False,
            exclusive=driver == "amqp",
            expires=EVENTS_EXPIRE_SECONDS,
            message_ttl=EVENT_TTL_SECONDS,
        )
        self._consumer = Consumer(channel, [queue], accept=["json"], no_ack=True, callbacks=[self._receive])
        self._consumer.consume()
        return True

    def _receive(self, body: object, _message: object) -> None:
        for signal in signals_in(body):
            self._on_signal(signal)

    def close(self) -> None:
        """Close the connection; its queue goes with it."""
        self._consumer = None
        if self._connection is not None:
            release(self._connection)
            self._connection = None


class FleetControl:
    """Asks nodes, and takes their consumers away. Its calls wait for answers, for a second at most each."""

    def __init__(
        self, url: str, options: Mapping[str, object], *, exchange: str, pause: Callable[[float], object]
    ) -> None:
        """`pause` waits between two looks at a node that is being fenced."""
        self._url = url
        self._options = options
        self._namespace = exchange
        self._pause = pause
        self._lock = threading.Lock()
        self._connection: Any = None
        self._mailboxes: dict[int, Any] = {}

    def query(
        self,
        nodes: Collection[str],
        command: str,
        arguments: Mapping[str, object] | None = None,
        *,
        seconds: float = ANSWER_SECONDS,
    ) -> dict[str, object]:
        """Return the answers of these nodes, by node; of all nodes where none is named. Silent ones are absent.

        Raises `SourceUnavailableError`.
        """
        with self._lock, as_unavailable("ask the workers", self._url):
            try:
                mailbox = self._open()
                if nodes:
                    return answers_in(mailbox.call(list(nodes), command, dict(arguments or {}), timeout=seconds))
                return answers_in(mailbox.multi_call(command, dict(arguments or {}), timeout=seconds))
            except Exception:
                self._close()
                raise

    def _open(self) -> Any:
        if self._connection is None:
            self._connection = opened(connect(self._url, self._options))
        thread = threading.get_ident()
        if thread not in self._mailboxes:  # kombu's has a name per thread, and the reply queue of the first one
            self._mailboxes[thread] = Mailbox(self._namespace, type="fanout", accept=["json"])(self._connection)
        return self._mailboxes[thread]

    def is_idle(self, node: str, *, wall_seconds: float) -> bool | None:
        """Return whether a node neither runs nor keeps a task that is due soon; None if it does not answer."""
        for command in ("active", "reserved"):
            tasks = active_in(self.query([node], command).get(node))
            if tasks is None:
                return None
            if tasks:
                return False
        etas = etas_in(self.query([node], "scheduled").get(node)) or ()
        return not any(eta - wall_seconds < NEAR_ETA_SECONDS for eta in etas)

    def etas_of(self, node: str) -> tuple[float, ...]:
        """Return the times of the tasks that a node keeps until then."""
        return etas_in(self.query([node], "scheduled").get(node)) or ()

    def queues_of(self, node: str) -> tuple[str, ...] | None:
        """Return the queues that a node takes tasks from now; None if it does not answer."""
        return queues_in(self.query([node], "active_queues").get(node))

    def stop_taking(self, node: str, queues: Sequence[str]) -> bool:
        """Make a node take no more tasks, and return whether it has confirmed that."""
        for queue in queues:
            self.query([node], "cancel_consumer", {"queue": queue})
        for _ in range(FENCE_POLLS):
            left = self.queues_of(node)
            if left is not None and not left:
                return True
            self._pause(FENCE_POLL_SECONDS)
        return False

    def resume_consuming(self, node: str, queues: Sequence[str]) -> None:
        """Let a node take tasks again."""
        for queue in queues:
            self.query([node], "add_consumer", {"queue": queue})

    def retire(
        self, node: str, queues: Sequence[str], *, busy: Literal["keep", "finish"], wall_seconds: float
    ) -> "Retirement":
        """Take the node's consumers away if it is idle (`finish`: in any case), and look twice whether it stays idle.

        A task may still have slipped in: then it takes tasks again (`keep`), or finishes that one.
        """
        if busy == "keep" and self.is_idle(node, wall_seconds=wall_seconds) is not True:
            return "busy"
        if not self.stop_taking(node, queues):
            if busy == "keep":
                self.resume_consuming(node, queues)
            return "busy"
        for _ in range(CONFIRMATIONS):
            if self.is_idle(node, wall_seconds=wall_seconds) is not True:
                if busy == "keep":
                    self.resume_consuming(node, queues)
                    return "busy"
                return "fenced"
            self._pause(FENCE_POLL_SECONDS)
        return "free"

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._mailboxes.clear()
        if self._connection is not None:
            release(self._connection)
            self._connection = None


Retirement = Literal["busy", "fenced", "free"]
"""A node after a try to retire it: left alone as it is busy; takes no more tasks and has some; or free to be ended."""
