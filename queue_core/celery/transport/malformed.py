"""Messages that nobody can run, found before a consumer gets them: they are dead, and their worker goes on. Pure.

What is wrong is said, and never a part of the message.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from queue_core.errors import QueueError
from queue_core.limits import is_number

MISTAKES: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What Celery's worker ends of, when it meets members of types that it does not expect."""
_TEXTS: Final = ("content-type", "content-encoding")
_CALL_PARTS: Final = 3
_LIMITS: Final = 2
LONGEST_LIMIT_SECONDS: Final = 10_000_000_000
"""Three centuries. A pool of processes ends over a number that is no float's, and its worker with it."""


class MalformedMessageError(QueueError):
    """A payload is no message of kombu's. Its text says why."""


def message_in(payload: bytes) -> dict[str, Any]:
    """Return the message in a payload. Raises `MalformedMessageError`."""
    try:
        message = json.loads(payload.decode("utf-8", "surrogatepass"))
    except RecursionError:
        raise MalformedMessageError("it is nested too deep") from None
    except ValueError:
        raise MalformedMessageError("it is not JSON") from None
    if not isinstance(message, dict):
        raise MalformedMessageError("it is not a JSON object")
    properties = message.get("properties")
    if not isinstance(properties, dict):
        raise MalformedMessageError("its properties are not an object")
    if not isinstance(properties.get("delivery_info") or {}, dict):
        raise MalformedMessageError("its delivery_info is not an object")
    if not isinstance(message.get("headers") or {}, dict):
        raise MalformedMessageError("its headers are not an object")
    if not isinstance(message.get("body"), str):
        raise MalformedMessageError("its body is not text")
    for name in _TEXTS:
        if not isinstance(message.get(name) or "", str):
            raise MalformedMessageError(f"its {name} is not text")
    return message


def flaw_of_call(headers: Mapping[str, Any], call: object) -> str:
    """Return what is wrong with a call of a Celery task; "": nothing that is known.

    Args:
        call: the decoded body: [args, kwargs, embed], or, in the first version of its protocol, an object.
    """
    if "task" not in headers:
        return _flaw_of_names(call) if isinstance(call, dict) and "task" in call else ""
    flaw = _flaw_of_names(headers)
    if flaw:
        return flaw
    if not isinstance(call, list | tuple) or len(call) != _CALL_PARTS:
        return "its body is not [args, kwargs, embed]"
    args, kwargs, embed = call
    if not isinstance(args, list | tuple) or not isinstance(kwargs, dict) or not isinstance(embed or {}, dict):
        return "its body is not [args, kwargs, embed]"
    return "" if _are_limits(headers.get("timelimit")) else "its timelimit is not two numbers of seconds"


def _are_limits(limits: object) -> bool:
    """Return whether these are a hard and a soft limit in seconds: a pool of processes stands still over others."""
    if limits is None:
        return True
    return (
        isinstance(limits, list | tuple)
        and len(limits) == _LIMITS
        and all(one is None or (is_number(one) and 0 <= one <= LONGEST_LIMIT_SECONDS) for one in limits)
    )


def _flaw_of_names(members: Mapping[str, Any]) -> str:
    if not isinstance(members["task"], str):
        return "the name of its task is not text"
    return "" if isinstance(members.get("id"), str) else "its id is not text"
