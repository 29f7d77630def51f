"""The form of what is told of leases: renewals with progress, releases with an error, deaths of workers, history.

Like `schemas`, of which it is a part: only the form is checked here.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from dataclasses import replace
from typing import Literal

from pydantic import Field

from queue_core import limits
from queue_core.attempts.attempt import (
    GIVEN_BACK,
    MAX_ERROR_CHARACTERS,
    MAX_HOST_CHARACTERS,
    MAX_MESSAGE_CHARACTERS,
    MAX_PATH_CHARACTERS,
    MAX_PLACE_CHARACTERS,
    MAX_TRACEBACK_CHARACTERS,
    WORKER_DIED,
    Failure,
)
from queue_core.attempts.failures import failure_of
from queue_core.errors import InvalidRequestError
from queue_core.server.schemas import RequestBody
from queue_core.task import Progress
from queue_core.verbs import Release, Renewal


class ProgressIn(RequestBody):
    """How far a handler is."""

    fraction: float = Field(description="In [0, 1].", examples=[0.4])
    text: str = Field("", description=f"At most {limits.MAX_PROGRESS_CHARACTERS} characters.")


class RenewalIn(RequestBody):
    """A lease to renew, and what its handler reports."""

    token: str
    seconds: float | None = Field(None, description="From now; that of the request when left out.")
    progress: ProgressIn | None = Field(None, description="Takes the place of the last.")
    checkpoint: str | None = Field(
        None,
        description=f"Base64, at most {limits.MAX_CHECKPOINT_BYTES} bytes: the task's next lease gets it.",
        examples=["cGFnZSAxMg=="],
    )

    def keys(self) -> int:
        """See `RequestBody.keys`."""
        return len(self.__pydantic_fields_set__) + (0 if self.progress is None else self.progress.keys())

    def value(self, seconds: float | None) -> Renewal:
        """Return it as a value. Raises `InvalidRequestError` for a checkpoint that is not base64."""
        progress = None if self.progress is None else Progress(self.progress.fraction, self.progress.text)
        return Renewal(self.token, seconds if self.seconds is None else self.seconds, progress, self._checkpoint())

    def _checkpoint(self) -> bytes | None:
        if self.checkpoint is None:
            return None
        try:
            return b64decode(self.checkpoint, validate=True)
        except (Base64Error, ValueError) as error:
            raise InvalidRequestError(
                f"the checkpoint of {self.token[:40]!r} is not base64: {error}; encode its bytes"
            ) from None


class RenewRequest(RequestBody):
    """Leases to renew: as bare tokens, or with what their handlers report."""

    tokens: tuple[str, ...] = Field((), strict=False)
    renewals: tuple[RenewalIn, ...] = Field((), strict=False)
    seconds: float | None = Field(None, description="From now, in [0, 604800]; the queue's own when left out.")

    def keys(self) -> int:
        """See `RequestBody.keys`."""
        given = len(self.__pydantic_fields_set__)
        return given + sum([renewal.keys() for renewal in self.renewals]) if self.renewals else given

    def values(self) -> list[Renewal]:
        """Return them as values. Raises `InvalidRequestError` where neither member is given."""
        renewals = [Renewal(token, self.seconds) for token in self.tokens]
        if self.renewals:
            renewals += [renewal.value(self.seconds) for renewal in self.renewals]
        elif not renewals and self.__pydantic_fields_set__ <= {"seconds"}:
            raise InvalidRequestError('a renew has `tokens` or `renewals`: neither given; send {"tokens": [...]}')
        return renewals


class FailureIn(RequestBody):
    """Why a lease ended: kept among the attempts of its task. Leave payloads and secrets out."""

    outcome: Literal["raised", "timed_out", "worker_died", "given_back"] | None = Field(
        None, description="`raised` when left out; of a worker's release `worker_died`."
    )
    error: str = Field("", description=f"The exception's class; at most {MAX_ERROR_CHARACTERS} characters.")
    message: str = Field("", description=f"At most {MAX_MESSAGE_CHARACTERS} characters.")
    place: str = Field("", description=f"As `tasks.py:14`; at most {MAX_PLACE_CHARACTERS} characters.")
    host: str = Field("", description=f"The worker's; at most {MAX_HOST_CHARACTERS} characters.")
    error_path: str = Field("", description=f"As `shop.errors.PaymentError`; at most {MAX_PATH_CHARACTERS} characters.")
    traceback: str = Field("", description=f"At most {MAX_TRACEBACK_CHARACTERS} characters; kept of the last attempt.")

    def value(self, outcome: Literal["raised", "worker_died"]) -> Failure:
        """Return it as a value; `outcome`: where it says none."""
        return Failure(
            self.outcome or outcome,
            self.error,
            self.message,
            self.place,
            self.host,
            self.error_path,
            self.traceback,
        )

    def colons(self) -> int:
        """See `RequestBody.colons`."""
        return sum(
            [
                text.count(":")
                for text in (self.error, self.message, self.place, self.host, self.error_path, self.traceback)
            ]
        )


class ReleaseRequest(RequestBody):
    """Leases to release."""

    tokens: list[str]
    delay_seconds: float | None = Field(None, description="In [0, 2592000]; the queue's back-off when left out.")
    charge: Literal["counted", "uncounted"] = "counted"
    dead_reason: str = Field("", description="Makes the tasks dead at once.")
    error: FailureIn | str | None = Field(
        None, description="Why: kept among the tasks' attempts. A text is cut, and what looks like a secret replaced."
    )

    def keys(self) -> int:
        """See `RequestBody.keys`."""
        return len(self.__pydantic_fields_set__) + (self.error.keys() if isinstance(self.error, FailureIn) else 0)

    def colons(self) -> int:
        """See `RequestBody.colons`."""
        if self.error is None:
            return 0
        return self.error.count(":") if isinstance(self.error, str) else self.error.colons()

    def values(self) -> list[Release]:
        """Return them as values."""
        failure = self._failure()
        return [
            Release(token, self.delay_seconds, self.charge, self.dead_reason, failure=failure) for token in self.tokens
        ]

    def _failure(self) -> Failure:
        if self.error is None:
            return GIVEN_BACK
        if isinstance(self.error, str):
            return replace(failure_of(self.error), host="")  # the host of this server says nothing of the worker's
        return self.error.value("raised")


class ReleaseWorkerRequest(RequestBody):
    """The end of a worker, as far as it is known."""

    failure: FailureIn | None = Field(None, description="Kept among the attempts of the tasks that it held.")

    def keys(self) -> int:
        """See `RequestBody.keys`."""
        return len(self.__pydantic_fields_set__) + (0 if self.failure is None else self.failure.keys())

    def colons(self) -> int:
        """See `RequestBody.colons`."""
        return 0 if self.failure is None else self.failure.colons()

    def value(self) -> Failure:
        """Return it as a value."""
        return WORKER_DIED if self.failure is None else self.failure.value("worker_died")
