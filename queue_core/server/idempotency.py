"""A client's call, as its `Idempotency-Key` header names it: `session/number/age`.

A session has one call under way at a time and numbers them upwards, so the store keeps one answer for each. The age, in
whole seconds and rounded up, is that of a call which is sent again; 0: it is sent for the first time.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from queue_core.errors import InvalidRequestError
from queue_core.store import ClientCall
from queue_core.unit_of_work import UnitOfWork

T = TypeVar("T")

HEADER = b"idempotency-key"

_KEY = re.compile(rb"([A-Za-z0-9_-]{1,64})/([0-9]{1,15})/([0-9]{1,9})")


def client_call(key: bytes | None) -> ClientCall | None:
    """Return the call that a key names; None for a request without one. Raises `InvalidRequestError`."""
    if key is None:
        return None
    match = _KEY.fullmatch(key)
    if match is None or int(match[2]) < 1:
        raise InvalidRequestError(
            "an Idempotency-Key is `session/number/age`: 1 to 64 letters, digits, - or _, a number from 1 on, and how "
            "many seconds ago the call was first sent, 0 for now; leave it out if the call is never sent again"
        )
    age_seconds = int(match[3])
    return ClientCall(match[1].decode(), int(match[2]), age_seconds > 0, age_seconds)


class RepeatableOperation(Generic[T]):
    """A step of a client's call that may be run again, here or by another server."""

    def __init__(self, call: ClientCall, run: Callable[[UnitOfWork, ClientCall], T]) -> None:
        self._call = call
        self._run = run

    def __call__(self, turn: UnitOfWork) -> T:
        """Run the verb; from the second time on as a repeat, as the first may have taken effect."""
        call, self._call = self._call, replace(self._call, is_repeat=True)
        return self._run(turn, call)
