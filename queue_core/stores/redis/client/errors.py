"""Classify a failed call of Redis: whether it took effect, what the client does next, and the final error. Pure.

| answer | took effect | the client | then raises |
| --- | --- | --- | --- |
| connection refused, not resolved, TLS fails | no | reconnects | `StoreUnavailableError` |
| connection cut, no answer in time | unknown | sends the same call again | `OutcomeUnknownError` |
| LOADING, BUSY, ASK, TRYAGAIN, CLUSTERDOWN, NOREPLICAS, maxclients | no | retries later | `StoreUnavailableError` |
| READONLY, MASTERDOWN, a replica (failover) | no | finds the primary, retries | `StoreUnavailableError` |
| MOVED | no | follows it | `StoreUnavailableError` |
| function not found | no | loads the library, retries | `StoreUnavailableError` |
| OOM (`maxmemory` reached), MISCONF (disk full) | no | | `StoreFullError` |
| MISCONF (disk fails) | no | waits, retries | `StoreUnavailableError` |
| NOAUTH, WRONGPASS, NOPERM | no | | `StoreUnsafeError` |
| a function found a key on another node: the slot is being moved | unknown | | `OutcomeUnknownError` |
| anything else: a fault in a function | unknown | | `CallFailedError` |

"No" holds because Redis refuses a function before its first write or not at all. A call that only reads is never
unknown. ASK is not followed: the other node has only some keys of the queue, and a function would take the others for
missing. The client bounds the time of all retries together.
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

_CODES: tuple[tuple[type[Exception], str], ...] = (  # redis-py removes the first word of these
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
    "NOREPLICAS": "fewer replicas follow it than min-replicas-to-write requires",
}
_ELSEWHERE = {
    "READONLY": "it is a replica: a failover is in progress, or the URL must name the primary",
    "MASTERDOWN": "it is a replica that lost its primary: a failover is in progress, or the URL must name the primary",
}


class CallFailedError(StoreError):
    """An answer for which the client has no rule; `code` is its first word, in capitals by Redis's custom."""

    def __init__(self, message: str, *, code: str, text: str) -> None:
        super().__init__(message)
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class RedisFailure:
    """The classification of a failure.

    Args:
        next: the client's next action.
        error: the error to raise if that does not help in time.
        is_answered: whether the server answered, so that nothing took effect (except for "anything else").
        to: the target of MOVED, `slot host:port`.
    """

    next: Next
    error: StoreError
    is_answered: bool = True
    to: str = ""


def failure_of(error: Exception, where: str) -> RedisFailure:
    """Classify an error that redis-py raised for a call of the server at `where`."""
    code, text = _answer(error)
    if not code:
        unreachable = StoreUnavailableError(f"no answer from Redis at {where}: {_first_line(error)}")
        return RedisFailure("resend", unreachable, is_answered=False)
    if code in _WAIT:
        return RedisFailure(
            "again", StoreUnavailableError(f"Redis at {where} can't answer now: {_WAIT[code]} ({text})")
        )
    if code in _ELSEWHERE:
        return RedisFailure(
            "elsewhere", StoreUnavailableError(f"Redis at {where} can't write: {_ELSEWHERE[code]} ({text})")
        )
    if code == "MOVED":
        return RedisFailure("moved", StoreUnavailableError(f"the nodes at {where} keep redirecting ({text})"), to=text)
    return _refusal(code, text, where)


def _refusal(code: str, text: str, where: str) -> RedisFailure:
    if code == "OOM":
        return RedisFailure(
            "stop",
            StoreFullError(
                f"Redis at {where} has reached its maxmemory; nothing was changed: "
                "delete or lease tasks, or raise maxmemory (CONFIG SET maxmemory)"
            ),
        )
    if code == "MISCONF":
        if "No space left" in text:
            return RedisFailure(
                "stop",
                StoreFullError(f"the disk of Redis at {where} is full; nothing was changed: free space ({text})"),
            )
        return RedisFailure(
            "again",
            StoreUnavailableError(f"Redis at {where} can't write to its disk: see its log ({text})"),
        )
    if code in ("NOAUTH", "WRONGPASS"):
        return RedisFailure(
            "stop",
            StoreUnsafeError(
                f"Redis at {where} refuses the login ({text}): give its user and password in the URL, "
                "redis://user:password@host (percent-encode what is not a letter or digit)"
            ),
        )
    if code == "NOPERM":
        return RedisFailure(
            "stop",
            StoreUnsafeError(
                f"the user at {where} lacks a right ({text}): "
                "ACL SETUSER it the rights listed in the manual, /docs/how-to/redis of a listener"
            ),
        )
    if code == "ERR" and "Function not found" in text:
        return RedisFailure("load", StoreUnavailableError(f"Redis at {where} keeps losing the functions ({text})"))
    if code == "ERR" and "non local key" in text:
        return RedisFailure(
            "stop",
            OutcomeUnknownError(
                f"the cluster at {where} is moving the queue to another node, and a call was interrupted: "
                "look before repeating, and move slots only while nobody uses their queues"
            ),
        )
    if code == "ERR" and "max number of clients" in text:
        return RedisFailure(
            "again", StoreUnavailableError(f"Redis at {where} has no connection left: raise maxclients")
        )
    message = f"Redis at {where} failed a call: {code} {text}"
    return RedisFailure("stop", CallFailedError(message, code=code, text=text))


def _answer(error: Exception) -> tuple[str, str]:
    """Return the first word of the server's answer and the rest; two empty texts when it did not answer."""
    text = _first_line(error)
    status = getattr(error, "status_code", None)  # the first word, in later releases of redis-py
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
