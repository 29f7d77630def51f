"""Check names, tags and ranges in App Engine's messages, with the error code of each. Pure."""

import re
from functools import lru_cache
from math import isnan

from queue_core import limits
from queue_core.errors import InvalidRequestError, InvalidTaskNameError
from queue_core.google.appengine.codes import ApplicationError, TaskQueueErrorCode, code_of

MAX_DETAIL_CHARACTERS = 500
"""Longest error message."""
CACHE_SIZE = 1000
"""Checked names and tags that are cached: most calls repeat those of the call before."""

_NAME = re.compile(rb"[a-zA-Z0-9_-]{1,500}")
_CHOSEN_NAME = re.compile(r"_[0-9]+")


@lru_cache(maxsize=CACHE_SIZE)
def queue_of(name: bytes) -> str:
    """Return a queue's name. Raises `ApplicationError`."""
    text = name.decode("ascii", "replace")
    try:
        limits.check_queue_name(text)
    except InvalidRequestError as error:
        raise refused(error) from None
    return text


def queue_or_none(name: bytes) -> str | None:
    """Return a queue's name, or None when it is invalid."""
    try:
        return queue_of(name)
    except ApplicationError:
        return None


def possible_name(name: bytes) -> str | None:
    """Return the name of a task that may exist, chosen by the queue or not; None when no task can have it."""
    return name.decode("ascii") if _NAME.fullmatch(name) else None


def is_chosen(name: str) -> bool:
    """Return whether the queue chose the name. Clients know such names only from the queue, so the task did exist."""
    return _CHOSEN_NAME.fullmatch(name) is not None


def given_name(name: bytes) -> str | None:
    """Return the name of a task to add; None when the queue chooses it. Raises `ApplicationError`."""
    if not name:
        return None
    try:
        text = name.decode("ascii", "replace")
        limits.check_task_name(text)
    except InvalidTaskNameError as error:
        raise refused(error) from None
    return text


@lru_cache(maxsize=CACHE_SIZE)
def tag_of(tag: bytes) -> str | None:
    """Return a tag, or None for an empty one. Raises `ApplicationError`."""
    if not tag:
        return None
    try:
        text = tag.decode()
        limits.check_tag(text)
    except UnicodeDecodeError as error:
        raise ApplicationError(
            TaskQueueErrorCode.INVALID_TAG, f"tag must be UTF-8: {tag[:60]!r}: {error.reason}"
        ) from None
    except InvalidRequestError as error:
        raise refused(error) from None
    return text


def check_lease_seconds(seconds: float) -> None:
    """Raise `ApplicationError` unless it is in [0, 604800]."""
    if isnan(seconds) or not 0 <= seconds <= limits.MAX_LEASE_SECONDS:
        raise ApplicationError(
            TaskQueueErrorCode.INVALID_REQUEST,
            f"lease_seconds must be in [0, {limits.MAX_LEASE_SECONDS:.0f}] (7 days): {seconds}",
        )


def refused(error: InvalidRequestError) -> ApplicationError:
    """Return a failed check of the queue as an `ApplicationError`."""
    return ApplicationError(code_of(error), str(error)[:MAX_DETAIL_CHARACTERS])
