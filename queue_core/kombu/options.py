"""The options of Towline in `broker_transport_options`, checked. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from queue_core.errors import InvalidSettingError

DEFAULT_POLLING_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """The options of a transport; all others are kombu's own, or of brokers used before.

    Args:
        lease_seconds: length of leases; None: each queue's own.
        max_leases: of queues that are created here: leases after which a task that is not done is dead.
        eta: `store`: a task with an eta waits in the store; `worker`: in the memory of a worker, as with other brokers.
        ack: `when_told`: a task is deleted when it is acknowledged; `when_done`: one that Celery acknowledges before it
            runs is deleted when it has ended.
        expired: `worker`: a worker gets a task that has expired, and marks it as revoked; `drop`: nobody does.
        worker: the name that leases are held by; "": `$TOWLINE_WORKER`, or host and process.
        durability: of a store that is opened without a server.
        polling_seconds: pause between two looks for tasks of a program without an event loop.
    """

    lease_seconds: float | None = None
    max_leases: int | None = None
    eta: Literal["store", "worker"] = "store"
    ack: Literal["when_told", "when_done"] = "when_told"
    expired: Literal["worker", "drop"] = "worker"
    worker: str = ""
    durability: Literal["strict", "relaxed"] = "strict"
    polling_seconds: float = DEFAULT_POLLING_SECONDS


def options_of(given: Mapping[str, object]) -> TransportOptions:
    """Return the options in `broker_transport_options`. Raises `InvalidSettingError`."""
    polling = _seconds(given, "polling_interval")
    max_leases = given.get("max_leases")
    if max_leases is not None and (not isinstance(max_leases, int) or isinstance(max_leases, bool) or max_leases < 1):
        raise _refusal("max_leases", max_leases, "a whole number, at least 1")
    worker = given.get("worker", "")
    if not isinstance(worker, str):
        raise _refusal("worker", worker, "text")
    return TransportOptions(
        lease_seconds=_seconds(given, "lease_seconds"),
        max_leases=max_leases,
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
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or seconds <= 0:
        raise _refusal(name, seconds, "seconds, more than 0")
    return float(seconds)


def _refusal(name: str, value: object, wanted: str) -> InvalidSettingError:
    return InvalidSettingError(f"broker_transport_options: {name} must be {wanted}: {value!r}")
