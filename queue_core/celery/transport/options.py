"""The options of Towline in `broker_transport_options`, checked. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, cast

from queue_core.errors import InvalidSettingError
from queue_core.limits import (
    CELERY_MESSAGE_BYTES,
    FARTHEST_ETA_SECONDS,
    LARGEST_PAYLOAD_BYTES,
    MAX_LEASE_SECONDS,
    MAX_LEASES,
    MAX_PAYLOAD_BYTES,
)
from queue_core.task import QueueSpec

DEFAULT_POLLING_SECONDS = 0.05
DEFAULT_MAX_LEASES = 20
"""The deliveries after which RabbitMQ's quorum queues, too, give a message up."""
DELIVERY_LIMIT = "x-delivery-limit"
"""RabbitMQ's name for the deliveries after which a message is dead: `max_leases` here."""
MESSAGE_LIMIT = "x-max-message-bytes"
"""The argument of a queue that gives the size of its messages: `max_payload` here."""
_NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """The options of a transport; all others are kombu's own, or of brokers used before.

    Args:
        lease_seconds: length of leases; None: each queue's own.
        max_leases: of queues that are created here: leases after which a task that is not done is dead; None: never.
        max_message_bytes: of queues that are created here: the size of a message, as text; 1 to 64 MiB.
        eta: `store`: a task with an eta waits in the store; `worker`: in the memory of a worker, as with other brokers.
        ack: `when_told`: a task is deleted when it is acknowledged; `when_done`: one that Celery acknowledges before it
            runs is deleted when it has ended.
        expired: `worker`: a worker gets a task that has expired, and marks it as revoked; `drop`: nobody does.
        worker: the name that leases are held by; "": `$TOWLINE_WORKER`, or host and process.
        durability: of a store that is opened without a server.
        polling_seconds: pause between two looks for tasks of a program without an event loop.
    """

    lease_seconds: float | None = None
    max_leases: int | None = DEFAULT_MAX_LEASES
    max_message_bytes: int = CELERY_MESSAGE_BYTES
    eta: Literal["store", "worker"] = "store"
    ack: Literal["when_told", "when_done"] = "when_told"
    expired: Literal["worker", "drop"] = "worker"
    worker: str = ""
    durability: Literal["strict", "relaxed"] = "strict"
    polling_seconds: float = DEFAULT_POLLING_SECONDS

    def spec(self, name: str, arguments: Mapping[str, Any] = _NO_ARGUMENTS, *, label: str = "") -> QueueSpec:
        """Return the settings of a queue that is created here. Raises `InvalidSettingError`.

        Its etas are as far ahead as can be: one that the store does not keep is held in a worker's memory.
        """
        most = arguments.get(MESSAGE_LIMIT, self.max_message_bytes)
        if type(most) is not int or not MAX_PAYLOAD_BYTES <= most <= LARGEST_PAYLOAD_BYTES:
            raise InvalidSettingError(f"queue {name}: {MESSAGE_LIMIT} must be {_SIZES}: {most!r}")
        return QueueSpec(
            name,
            max_leases=arguments.get(DELIVERY_LIMIT, self.max_leases),
            max_payload_bytes=most,
            max_eta_seconds=FARTHEST_ETA_SECONDS,
            label=label,
        )


_SIZES = f"a whole number of bytes in [{MAX_PAYLOAD_BYTES}, {LARGEST_PAYLOAD_BYTES}], 1 to 64 MiB"


def options_of(given: Mapping[str, object]) -> TransportOptions:
    """Return the options in `broker_transport_options`. Raises `InvalidSettingError`."""
    polling = _seconds(given, "polling_interval")
    max_leases = given.get("max_leases", DEFAULT_MAX_LEASES)
    if max_leases is not None and (type(max_leases) is not int or not 1 <= max_leases <= MAX_LEASES):
        raise _refusal("max_leases", max_leases, f"a whole number in [1, {MAX_LEASES}]")
    most = given.get("max_message_bytes", CELERY_MESSAGE_BYTES)
    if not isinstance(most, int) or isinstance(most, bool) or not MAX_PAYLOAD_BYTES <= most <= LARGEST_PAYLOAD_BYTES:
        raise _refusal("max_message_bytes", most, _SIZES)
    worker = given.get("worker", "")
    if not isinstance(worker, str):
        raise _refusal("worker", worker, "text")
    return TransportOptions(
        lease_seconds=_seconds(given, "lease_seconds"),
        max_leases=max_leases,
        max_message_bytes=most,
        eta=cast("Literal['store', 'worker']", _word(given, "eta", ("store", "worker"))),
        ack=cast("Literal['when_told', 'when_done']", _word(given, "ack", ("when_told", "when_done"))),
        expired=cast("Literal['worker', 'drop']", _word(given, "expired", ("worker", "drop"))),
        worker=worker,
        durability=cast("Literal['strict', 'relaxed']", _word(given, "durability", ("strict", "relaxed"))),
        polling_seconds=DEFAULT_POLLING_SECONDS if polling is None else polling,
    )


def _word(given: Mapping[str, object], name: str, words: tuple[str, ...]) -> str:
    word = given.get(name, words[0])
    if word not in words:
        raise _refusal(name, word, " or ".join(words))
    return str(word)


def _seconds(given: Mapping[str, object], name: str) -> float | None:
    seconds = given.get(name)
    if seconds is None:
        return None
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds <= MAX_LEASE_SECONDS:
        raise _refusal(name, seconds, f"seconds, more than 0, at most {MAX_LEASE_SECONDS:.0f}")
    return float(seconds)


def _refusal(name: str, value: object, wanted: str) -> InvalidSettingError:
    return InvalidSettingError(f"broker_transport_options: {name} must be {wanted}: {value!r}")
