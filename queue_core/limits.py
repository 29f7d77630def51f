"""Every limit of the queue by name, with its unit and source, and the checks that enforce it. Pure."""

import re
from collections.abc import Mapping, Sequence

from queue_core.clock import MICROSECONDS, Instant
from queue_core.errors import (
    InvalidCountError,
    InvalidEtaError,
    InvalidLeaseTimeError,
    InvalidQueueNameError,
    InvalidRequestError,
    InvalidSettingError,
    InvalidTagError,
    InvalidTaskNameError,
    TaskTooLargeError,
    TooManyTagsError,
    TooManyTasksError,
)

# Source of each, unless said: App Engine's task queue SDKs.
MAX_PAYLOAD_BYTES = 1 << 20  # of a queue whose `max_payload` allows no more
LARGEST_PAYLOAD_BYTES = 64 << 20  # our own: the highest `max_payload`. A call holds a few copies of a payload.
MAX_ANSWER_BYTES = 8 << 20  # our own: payloads of one answer. The server's loop stands still while it encodes them.
MAX_LOCAL_LEASE_BYTES = 64 << 20  # our own: payloads that one lease takes from a store without a server
MAX_PRIORITY = 9  # our own, and the highest that all brokers of AMQP must know
MAX_IN_FLIGHT = 1_000_000  # our own: for more, set no limit
MAX_RATE_PER_SECOND = 1_000_000.0  # our own: a token a microsecond
MIN_RATE_PER_SECOND = 1 / 86_400  # our own: a token a day
MAX_BURST = 1_000_000  # our own
MAX_TASKS_PER_ADD = 1000  # App Engine: 100. A batch of 1,000 is what one lease may take, so a handler can pass it on.
MAX_TASKS_PER_LEASE = 1000
MAX_TOKENS_PER_CALL = 1000
MAX_TOKEN_QUEUES = 100
"""Patterns of queues that one token is for."""
MAX_DECLARED_QUEUES = 1_000
"""Queues of a store up to which those who are no administrators may create more."""
MAX_LOOKS_PER_CALL = 1000
MAX_LEASE_SECONDS = 604_800.0  # 7 days
MAX_ETA_SECONDS = 30 * 86_400.0  # 30 days ahead, in a queue whose `max_eta` allows no more
CELERY_MESSAGE_BYTES = 32 << 20
"""The size of a message in queues that are made for Celery: twice RabbitMQ's own default, so that what passed before
passes. It is kept as JSON, in which binary bodies are a third longer, quotes and backslashes of JSON twice as long."""
FARTHEST_ETA_SECONDS = 3650 * 86_400.0  # our own, the highest `max_eta`: 10 years, as marks of imports last
MAX_LEASES = (1 << 31) - 1  # our own: what a store's column holds
MAX_LEASE_CALLS_PER_SECOND = 1_000_000  # our own
MAX_EMAILS = 1000  # our own, for users and for writers each
MAX_EMAIL_CHARACTERS = 320  # RFC 3696: 64 before the @, 255 after
MAX_INTEGER = (1 << 63) - 1  # our own: what a store's column holds
MAX_STORAGE_BYTES = MAX_INTEGER  # our own
MAX_TAG_BYTES = 500
MAX_TAGS_PER_LEASE = 100  # our own: one index probe a tag
MAX_QUEUE_NAME_CHARACTERS = 100
MAX_LABEL_CHARACTERS = 600  # our own: two names of AMQP, and a stroke
MAX_TASK_NAME_CHARACTERS = 500
MAX_WAIT_SECONDS = 300.0  # our own: proxies drop longer silences
MAX_TIMEOUT_SECONDS = 86_400.0  # our own: of a client's call
MAX_REASON_CHARACTERS = 2000  # our own
MAX_WORKER_CHARACTERS = 200  # our own
MAX_PEEK_TASKS = 1000  # our own
MAX_HEADERS_BYTES = 4096  # our own: of all names and values of a task's headers together
MAX_CHECKPOINT_BYTES = 16 << 10  # our own
MAX_PROGRESS_CHARACTERS = 200  # our own
MAX_HISTORY_LEASES = 1_000_000  # our own: a search by name reads them all
MAX_HISTORY_SECONDS = 366 * 86_400.0  # our own
NAME_RETENTION_SECONDS = 9 * 86_400.0  # of queues from a queue.yaml

_SHOWN_BITS = 10_000
_FAR = 10**24
"""Microseconds beyond which an error does not say how far away an instant is."""
_QUEUE_NAME = re.compile(r"[a-zA-Z0-9-]{1,100}")
_TASK_NAME = re.compile(r"[a-zA-Z0-9_-]{1,500}")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_HEADER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NUMBERS = (float, int)
"""The types of nearly all numbers, looked at before `is_number` is called on the way of every lease."""
_CHOSEN_NAME = re.compile(r"_[0-9]+")


def check_queue_name(name: str) -> None:
    """Raise `InvalidQueueNameError` unless `name` is 1 to 100 letters, digits and hyphens."""
    if not isinstance(name, str) or not _QUEUE_NAME.fullmatch(name):
        raise InvalidQueueNameError(
            f"queue name must be 1 to {MAX_QUEUE_NAME_CHARACTERS} letters, digits or '-': {shown_value(name)}"
        )


def check_task_name(name: str) -> None:
    """Raise `InvalidTaskNameError` unless `name` is legal and not of the form of a generated name (`_42`)."""
    if not _TASK_NAME.fullmatch(name):
        check_text("name", name, error=InvalidTaskNameError)
        raise InvalidTaskNameError(
            f"task name must be 1 to {MAX_TASK_NAME_CHARACTERS} letters, digits, '_' or '-': {shown_value(name)}"
        )
    if _CHOSEN_NAME.fullmatch(name):
        raise InvalidTaskNameError(
            f"task name '_' + digits is reserved for generated names: {shown_value(name)}; put a letter first"
        )


def check_tag(tag: str) -> None:
    """Raise `InvalidTagError` unless `tag` is 1 to 500 bytes of UTF-8."""
    try:
        size = len(tag.encode("utf-8", "surrogatepass"))
    except AttributeError:
        raise InvalidTagError(f"tag must be text: {tag!r}") from None
    if not 1 <= size <= MAX_TAG_BYTES or "\x00" in tag:
        raise InvalidTagError(
            f"tag must be 1 to {MAX_TAG_BYTES} bytes without NUL: {shown_value(tag)} has {size} bytes"
        )
    if not tag.isascii():
        check_text("tag", tag, error=InvalidTagError)


def check_text(what: str, text: str, *, error: type[InvalidRequestError] = InvalidRequestError) -> None:
    """Raise an `InvalidRequestError` for text that stores can't keep: lone surrogates (not UTF-8), or NUL.

    Python decodes a command's non-UTF-8 argument to such text.
    """
    if "\x00" in text or (not text.isascii() and _LONE_SURROGATE.search(text)):
        raise error(f"{what} must be UTF-8 text, without lone surrogates and NUL: {shown_value(text)}")


def check_tags(tags: Sequence[str]) -> None:
    """Raise `TooManyTagsError`, `InvalidTagError` unless there are at most 100 tags, each of them legal."""
    if len(tags) > MAX_TAGS_PER_LEASE:
        raise TooManyTagsError(f"at most {MAX_TAGS_PER_LEASE} tags in one lease: {len(tags)}; lease any tag instead")
    for tag in tags:
        check_tag(tag)


def check_payload(payload: bytes, *, most: int = MAX_PAYLOAD_BYTES, queue: str = "") -> None:
    """Raise `TaskTooLargeError` over `most` bytes: `max_payload` of `queue` ("": no queue allows more)."""
    if len(payload) > most:
        where = f"in queue {queue}: raise its max_payload, " if queue and most < LARGEST_PAYLOAD_BYTES else ""
        raise TaskTooLargeError(
            f"payload must be at most {most} bytes ({most / (1 << 20):g} MiB): {len(payload)}; "
            f"{where}{'or ' if where else ''}keep the data elsewhere and add its address",
            most=most,
        )


def check_eta(eta: Instant, *, now: Instant, most_seconds: float = MAX_ETA_SECONDS, queue: str = "") -> None:
    """Raise `InvalidEtaError` for an eta before the epoch or more than `most_seconds` ahead: `max_eta` of `queue`."""
    if eta < 0 or eta > now + most_seconds * MICROSECONDS:
        ahead = min(_FAR, max(-_FAR, eta - now)) / MICROSECONDS
        eta = Instant(min(_FAR, max(-_FAR, eta)))
        raise InvalidEtaError(
            f"eta must be after 1970 and at most {most_seconds:.0f} s ({most_seconds / 86_400:g} days) ahead: "
            f"{eta} us, {ahead:.0f} s ahead{_max_eta_hint(most_seconds, queue)}"
        )


def check_delay_seconds(seconds: float, *, most_seconds: float = MAX_ETA_SECONDS, queue: str = "") -> None:
    """Raise `InvalidEtaError` unless `seconds` are in [0, `most_seconds`]: `max_eta` of `queue`."""
    if not is_number(seconds) or not 0 <= seconds <= most_seconds:
        limit = f"[0, {most_seconds:.0f}] s"
        hint = _max_eta_hint(most_seconds, queue)
        raise InvalidEtaError(f"delay must be a number in {limit}: {shown_value(seconds)}{hint}")


def check_any_delay_seconds(seconds: float) -> None:
    """Raise `InvalidEtaError` for a delay that no queue allows."""
    if is_number(seconds) and seconds > MAX_ETA_SECONDS:
        check_delay_seconds(seconds, most_seconds=FARTHEST_ETA_SECONDS)
    else:
        check_delay_seconds(seconds)


def _max_eta_hint(most_seconds: float, queue: str) -> str:
    """Return how to allow a later eta, as words to append."""
    return f"; raise max_eta of queue {queue}" if queue and most_seconds < FARTHEST_ETA_SECONDS else ""


def check_ahead_seconds(seconds: float) -> None:
    """Raise `InvalidEtaError` unless 0 <= `seconds` <= 30 days."""
    if not is_number(seconds) or not 0 <= seconds <= MAX_ETA_SECONDS:
        raise InvalidEtaError(f"ahead_seconds must be a number in [0, {MAX_ETA_SECONDS:.0f}]: {shown_value(seconds)}")


def check_lease_seconds(seconds: float, *, what: str = "lease time") -> None:
    """Raise `InvalidLeaseTimeError` unless 0 <= `seconds` <= 7 days; `what` is what the message calls them."""
    if (type(seconds) not in _NUMBERS and not is_number(seconds)) or not 0 <= seconds <= MAX_LEASE_SECONDS:
        raise InvalidLeaseTimeError(
            f"{what} must be a number in [0, {MAX_LEASE_SECONDS:.0f}] s (7 days): {shown_value(seconds)}"
        )


def check_wait_seconds(seconds: float) -> None:
    """Raise `InvalidLeaseTimeError` unless 0 <= `seconds` <= 300."""
    if (type(seconds) not in _NUMBERS and not is_number(seconds)) or not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise InvalidLeaseTimeError(
            f"waiting time must be a number in [0, {MAX_WAIT_SECONDS:.0f}] s: {shown_value(seconds)}; "
            "call again to wait longer"
        )


def check_lifetime_seconds(what: str, seconds: float) -> None:
    """Raise `InvalidRequestError` unless 0 <= `seconds` <= 10 years."""
    if not is_number(seconds) or not 0 <= seconds <= FARTHEST_ETA_SECONDS:
        raise InvalidRequestError(
            f"{what} must be a number in [0, {FARTHEST_ETA_SECONDS:.0f}] s (10 years): {shown_value(seconds)}"
        )


def check_timeout_seconds(seconds: float) -> None:
    """Raise `InvalidSettingError` unless `seconds` are more than 0 and at most a day."""
    if not is_number(seconds) or not 0 < seconds <= MAX_TIMEOUT_SECONDS:
        raise InvalidSettingError(
            f"timeout_seconds must be a number of more than 0 and at most {MAX_TIMEOUT_SECONDS:.0f} s (1 day): "
            f"{shown_value(seconds)}"
        )


def check_max_leases(number: int) -> None:
    """Raise `InvalidSettingError` unless a task may have so many leases."""
    if not is_number(number) or not isinstance(number, int) or not 1 <= number <= MAX_LEASES:
        raise InvalidSettingError(f"max_leases must be a whole number in [1, {MAX_LEASES}]: {shown_value(number)}")


def check_lease_count(count: int) -> None:
    """Raise `InvalidCountError` unless 1 <= `count` <= 1000."""
    if type(count) is not int or not 1 <= count <= MAX_TASKS_PER_LEASE:
        check_whole("number of tasks to lease", count, 1, MAX_TASKS_PER_LEASE)


def check_add_count(count: int) -> None:
    """Raise `TooManyTasksError` over 1,000 tasks."""
    if count > MAX_TASKS_PER_ADD:
        raise TooManyTasksError(f"at most {MAX_TASKS_PER_ADD} tasks in one add: {count}; split the batch")


def check_token_count(count: int) -> None:
    """Raise `TooManyTasksError` over 1,000 tokens."""
    if count > MAX_TOKENS_PER_CALL:
        raise TooManyTasksError(f"at most {MAX_TOKENS_PER_CALL} tokens in one call: {count}; split the batch")


def check_worker(worker: str) -> None:
    """Raise `InvalidTaskNameError` unless `worker` is UTF-8 text of at most 200 characters."""
    if not isinstance(worker, str):
        raise InvalidTaskNameError(f"worker must be text: {worker!r}")
    if len(worker) > MAX_WORKER_CHARACTERS:
        raise InvalidTaskNameError(f"worker must be at most {MAX_WORKER_CHARACTERS} characters: {len(worker)}")
    if not worker.isascii() or "\x00" in worker:
        check_text("worker", worker, error=InvalidTaskNameError)


def check_known_names(names: Sequence[str]) -> None:
    """Raise `TooManyTasksError` for over 1,000 names, `InvalidTaskNameError` for one that is no valid text.

    A name of the wrong form is accepted: it is simply unknown.
    """
    check_token_count(len(names))
    for name in names:
        check_text("task name", name, error=InvalidTaskNameError)


def check_reason(reason: str) -> None:
    """Raise `InvalidCountError` unless a dead task's reason is UTF-8 text of at most 2,000 characters."""
    if not isinstance(reason, str):
        raise InvalidCountError(f"dead_reason must be text: {reason!r}")
    if len(reason) > MAX_REASON_CHARACTERS:
        raise InvalidCountError(f"dead_reason must be at most {MAX_REASON_CHARACTERS} characters: {len(reason)}")
    check_text("dead_reason", reason, error=InvalidCountError)


def check_headers(headers: object) -> None:
    """Raise `InvalidRequestError` unless these are headers: legal names, text values, at most 4 KiB together."""
    if not isinstance(headers, Mapping):
        raise InvalidRequestError(f"headers must be a map of text to text: {type(headers).__name__} given")
    total_bytes = 0
    for name, text in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise InvalidRequestError(
                f"a header's name must be 1 to 64 letters, digits, '_', '.' or '-': {str(name)[:70]!r}"
            )
        if not isinstance(text, str):
            raise InvalidRequestError(f"header {name!r} must be text: {type(text).__name__} given; str(value) makes it")
        check_text(f"header {name!r}", text)
        total_bytes += len(name) + len(text.encode())
    if total_bytes > MAX_HEADERS_BYTES:
        raise InvalidRequestError(
            f"headers must be at most {MAX_HEADERS_BYTES} bytes (4 KiB) together: {total_bytes}; "
            "put the data into the payload"
        )


def check_progress(fraction: float, text: str) -> None:
    """Raise `InvalidRequestError` unless `fraction` is in [0, 1] and `text` has at most 200 characters."""
    if not is_number(fraction) or not 0 <= fraction <= 1:
        raise InvalidRequestError(f"progress must be a number in [0, 1]: {shown_value(fraction)}; give done / total")
    if not isinstance(text, str) or len(text) > MAX_PROGRESS_CHARACTERS:
        raise InvalidRequestError(
            f"progress's text must be text of at most {MAX_PROGRESS_CHARACTERS} characters: {shown_value(text)}"
        )
    check_text("progress's text", text)


def check_checkpoint(checkpoint: bytes) -> None:
    """Raise `InvalidRequestError` unless a checkpoint is at most 16 KiB of bytes."""
    if not isinstance(checkpoint, bytes):
        raise InvalidRequestError(f"a checkpoint must be bytes: {type(checkpoint).__name__} given; encode it")
    if len(checkpoint) > MAX_CHECKPOINT_BYTES:
        raise InvalidRequestError(
            f"a checkpoint must be at most {MAX_CHECKPOINT_BYTES} bytes (16 KiB): {len(checkpoint)}; "
            "keep the data elsewhere and save its address"
        )


def check_cursor(after: int, *, name: str = "after") -> None:
    """Raise `InvalidCountError` unless `after`, which the caller knows as `name`, is in [0, 2^63)."""
    check_whole(name, after, 0, MAX_INTEGER)


def check_page(limit: int, *, after: int = 0, payload_bytes: int = 0) -> None:
    """Raise `InvalidCountError` unless `limit` is in [1, 1000], `after` >= 0 and `payload_bytes` in [0, 64 MiB]."""
    check_whole("limit", limit, 1, MAX_PEEK_TASKS)
    check_whole("after", after, 0, MAX_INTEGER)
    check_whole("payload_bytes", payload_bytes, 0, LARGEST_PAYLOAD_BYTES)


def is_number(value: object) -> bool:
    """Return whether a value is a number; True and False are none, not-a-number is one that is in no range."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_whole(name: str, number: int, least: int, most: int) -> None:
    """Raise `InvalidCountError` unless `number` is a whole number in [`least`, `most`]."""
    if type(number) is bool or not isinstance(number, int) or not least <= number <= most:
        raise InvalidCountError(f"{name} must be a whole number in [{least}, {most}]: {shown_value(number)}")


def shown_value(value: object) -> str:
    """Return a value as a message shows it: its begin, where it is long."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return "a number of very many digits"  # Python writes none of more than 4,300
    text = repr(value)
    return text if len(text) <= 62 else f"{text[:58]}...{text[-1]}"
