"""What a failed call of Redis means: whether anything took effect, what to do next, and the error if it goes on. Pure.

| answer | took effect | the link | then raises |
| --- | --- | --- | --- |
| connection refused, not resolved, TLS fails | no | connects again | `StoreUnavailableError` |
| connection cut, no answer in time | unknown | sends the same call again | `OutcomeUnknownError` |
| LOADING, BUSY, ASK, TRYAGAIN, CLUSTERDOWN, NOREPLICAS, maxclients | no | tries it later | `StoreUnavailableError` |
| READONLY, MASTERDOWN, a replica (failover) | no | looks for the primary, tries again | `StoreUnavailableError` |
| MOVED | no | goes there | `StoreUnavailableError` |
| function not found | no | loads the library, calls again | `StoreUnavailableError` |
| OOM (`maxmemory` reached), MISCONF (disk full) | no | | `StoreFullError` |
| MISCONF (disk fails) | no | waits, tries again | `StoreUnavailableError` |
| NOAUTH, WRONGPASS, NOPERM | no | | `StoreUnsafeError` |
| a function met a key on another node: its queue is being moved | unknown | | `OutcomeUnknownError` |
| anything else: a fault in a function | unknown | | `CallFailedError` |

"No" holds because Redis refuses a function before its first write or not at all. A call that looks is never unknown.
ASK is not followed: the other node has some keys of the queue, and a function would take the others for missing.
All tries together last no longer than the link's bound.
"""

from dataclasses import dataclass
from typing import Literal

from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from queue_core.errors import (
    OutcomeUnknownError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    StoreUnsafeError,
)

Next = Literal["resend", "again", "elsewhere", "moved", "load", "stop"]

_CODES: tuple[tuple[type[Exception], str], ...] = (  # redis-py takes the first word off these
    (BusyLoadingError, "LOADING"),
    (OutOfMemoryError, "OOM"),
    (ReadOnlyError, "READONLY"),
    (NoPermissionError, "NOPERM"),
    (AuthenticationWrongNumberOfArgsError, "NOAUTH"),
    (AuthenticationError, "NOAUTH"),
    (AuthorizationError, "NOAUTH"),
)
_WAIT = {
    "LOADING": "it is loading its data",
    "BUSY": "it is busy with a script; end that by SCRIPT KILL or FUNCTION KILL",
    "ASK": "the cluster is moving the queue to another node",
    "TRYAGAIN": "the cluster is moving the queue to another node",
    "CLUSTERDOWN": "the cluster is down: a node that holds some of its slots is gone",
    "NOREPLICAS": "fewer replicas follow it than min-replicas-to-write asks for",
}
_ELSEWHERE = {
    "READONLY": "it is a replica: a failover is under way, or the URL must name the primary",
    "MASTERDOWN": "it is a replica that lost its primary: a failover is under way, or the URL must name the primary",
}


class CallFailedError(StoreError):
    """An answer that the link has no rule for; `code` is its first word, in capitals by Redis's custom."""

    def __init__(self, message: str, *, code: str, text: str) -> None:
        super().__init__(message)
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class RedisFailure:
    """What a failure means.

    Args:
        next: what the link does.
        error: what it raises when that does not help in time.
        is_answered: the server answered, so nothing took effect (but see "anything else").
        to: where MOVED points: `slot host:port`.
    """

    next: Next
    error: StoreError
    is_answered: bool = True
    to: str = ""


def failure_of(error: Exception, place: str) -> RedisFailure:
    """What `error`, raised by redis-py for a call of the server at `place`, means."""
    code, text = _answer(error)
    if not code:
        unreachable = StoreUnavailableError(f"no answer from Redis at {place}: {_first_line(error)}")
        return RedisFailure("resend", unreachable, is_answered=False)
    if code in _WAIT:
        return RedisFailure(
            "again", StoreUnavailableError(f"Redis at {place} can't answer now: {_WAIT[code]} ({text})")
        )
    if code in _ELSEWHERE:
        return RedisFailure(
            "elsewhere", StoreUnavailableError(f"Redis at {place} can't write: {_ELSEWHERE[code]} ({text})")
        )
    if code == "MOVED":
        return RedisFailure(
            "moved", StoreUnavailableError(f"the nodes at {place} go on pointing elsewhere ({text})"), to=text
        )
    return _refusal(code, text, place)


def _refusal(code: str, text: str, place: str) -> RedisFailure:
    if code == "OOM":
        return RedisFailure(
            "stop",
            StoreFullError(
                f"Redis at {place} has reached its maxmemory; nothing was changed: "
                "delete or lease tasks, or raise maxmemory (CONFIG SET maxmemory)"
            ),
        )
    if code == "MISCONF":
        if "No space left" in text:
            return RedisFailure(
                "stop",
                StoreFullError(f"the disk of Redis at {place} is full; nothing was changed: free some ({text})"),
            )
        return RedisFailure(
            "again",
            StoreUnavailableError(f"Redis at {place} can't write its disk: see its log ({text})"),
        )
    if code in ("NOAUTH", "WRONGPASS"):
        return RedisFailure(
            "stop",
            StoreUnsafeError(
                f"Redis at {place} does not let us in ({text}): give its user and password in the URL, "
                "redis://user:password@host (percent-encode what is not a letter or digit)"
            ),
        )
    if code == "NOPERM":
        return RedisFailure(
            "stop",
            StoreUnsafeError(
                f"the user at {place} lacks a right ({text}): ACL SETUSER it the rights listed in doc/redis.md"
            ),
        )
    if code == "ERR" and "Function not found" in text:
        return RedisFailure("load", StoreUnavailableError(f"Redis at {place} keeps losing our functions ({text})"))
    if code == "ERR" and "non local key" in text:
        return RedisFailure(
            "stop",
            OutcomeUnknownError(
                f"the cluster at {place} is moving the queue to another node, and a call was broken off: "
                "look before repeating, and move slots only while nobody uses their queues"
            ),
        )
    if code == "ERR" and "max number of clients" in text:
        return RedisFailure(
            "again", StoreUnavailableError(f"Redis at {place} has no connection left: raise maxclients")
        )
    message = f"Redis at {place} failed a call: {code} {text}"
    return RedisFailure("stop", CallFailedError(message, code=code, text=text))


def _answer(error: Exception) -> tuple[str, str]:
    """The first word of what the server answered, and the rest; two empty texts when it did not answer."""
    text = _first_line(error)
    status = getattr(error, "status_code", None)  # where later releases of redis-py keep the first word
    if isinstance(status, str) and status:
        return status, text.removeprefix(status).strip()
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code, text.removeprefix(code).strip()
    if "max number of clients" in text:
        return "ERR", text
    if not isinstance(error, ResponseError):
        return "", ""
    code, _, rest = text.partition(" ")
    return (code, rest) if code.isupper() else ("ERR", text)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]
