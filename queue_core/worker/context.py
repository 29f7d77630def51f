"""Task, the argument of a handler; `Retry` and `Dead`, which a handler raises; `Timeout` and `Backoff`."""

import json
from collections.abc import Callable
from math import inf, isnan
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, cast

from queue_core.attempts.error_text import is_kind
from queue_core.attempts.redaction import redacted
from queue_core.errors import InvalidCountError, InvalidEtaError, LeaseLostError
from queue_core.limits import MAX_LEASES, MAX_PROGRESS_CHARACTERS, check_checkpoint, check_delay_seconds
from queue_core.semantics import retry_delay_seconds
from queue_core.task import Headers, Lease, Progress, QueueSpec
from queue_core.verbs import Renewal

Seconds: TypeAlias = float | str
"""Seconds as a number, or a duration as people write it: "30s", "5m", "1h30m"."""


def seconds_of(duration: Seconds) -> float:
    """Return a duration in seconds. Raises `ValueError` with a hint for a text or a number that is none."""
    if isinstance(duration, str):
        from queue_core.config.units import parse_seconds

        return parse_seconds(duration)
    try:
        return float(duration)
    except OverflowError:  # an integer of hundreds of digits: what bounds it refuses it
        return inf if duration > 0 else -inf
    except TypeError:
        raise ValueError(f"{duration!r}: write seconds as a number, or a text such as '30s'") from None


SHORTEST_RETRY_SECONDS: Final = 1.0
"""Least delay of a retry that spends no attempt."""


class Retry(Exception):  # noqa: N818  a handler says what is to happen: `raise Retry(60)`
    """Release the task, to be leased again after `delay_seconds` instead of the queue's own back-off.

    By default it spends no attempt: the task is not to blame, as when a service it calls is overloaded (429). Such a
    retry waits for 1 s at least, as nothing else ends a loop of them.
    """

    def __init__(self, delay_seconds: Seconds, *, charge: Literal["counted", "uncounted"] = "uncounted") -> None:
        """Set the delay, in seconds or as "1m"; with `charge` "counted" it spends an attempt, as other failures do.

        Raises `InvalidEtaError` unless the delay is in [0, 30 days].
        """
        seconds = seconds_of(delay_seconds)
        check_delay_seconds(seconds)
        if charge == "uncounted":
            seconds = max(seconds, SHORTEST_RETRY_SECONDS)
        super().__init__(f"retry in {seconds:g} s")
        self.delay_seconds = seconds
        self.charge = charge


class Dead(Exception):  # noqa: N818  as above: `raise Dead("not an image")`
    """Make the task dead at once: no retry can help. It is kept with this reason, and can be redriven."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def wish_of(error: BaseException) -> Retry | Dead | None:
    """Return what an error of a handler asks for, with attributes that can be used; None for any other error.

    Classes of a user's may set them to anything, or not at all: such a `Retry` is an error like any other.
    """
    try:
        if is_kind(error, Dead):
            return Dead(_reason_in(cast("Dead", error)))
        if is_kind(error, Retry):
            charge = cast("Retry", error).charge
            return Retry(cast("Retry", error).delay_seconds, charge=charge) if charge in _CHARGES else None
    except BaseException:  # noqa: BLE001  properties of a user's
        return None
    return None


def _reason_in(error: Dead) -> str:
    try:
        return error.reason
    except BaseException:  # noqa: BLE001  as above
        return ""


class Timeout(Exception):  # noqa: N818  a key of `on`, and the error of an attempt: `on={Timeout: Retry("1m")}`
    """A handler ran for longer than its `timeout`: an async one is cancelled; a plain one is left, its worker ends."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it ran for more than {seconds:g} s")
        self.seconds = seconds


class Backoff:
    """How the tasks of one handler are retried, in place of their queue's settings.

    The n-th failure waits `min` times 2 to the power of n - 1, at most `max`, less up to a tenth by chance; after
    `attempts` counted leases the task is dead.

    Source: App Engine's `retry_parameters`; see `semantics.retry_delay_seconds`.
    """

    __slots__ = ("attempts", "max_seconds", "min_seconds")

    def __init__(self, min: Seconds = 1.0, max: Seconds = 300.0, *, attempts: int | None = None) -> None:  # noqa: A002
        """Set the bounds, in seconds or as "1s", "5m"; `attempts` None: as many as the queue's `max_leases`.

        Raises `InvalidEtaError` unless 0 <= `min` <= `max` <= 30 days, `InvalidCountError` for no attempt at all.
        """
        self.min_seconds, self.max_seconds = seconds_of(min), seconds_of(max)
        check_delay_seconds(self.min_seconds)
        check_delay_seconds(self.max_seconds)
        if self.min_seconds > self.max_seconds:
            raise InvalidEtaError(f"retry must have min <= max: {self.min_seconds:g} s > {self.max_seconds:g} s")
        if attempts is not None and not 1 <= attempts <= MAX_LEASES:
            raise InvalidCountError(f"attempts must be in [1, {MAX_LEASES}]: {attempts}")
        self.attempts = attempts

    def delay_seconds(self, *, leases: int, jitter: float) -> float:
        """Return the seconds to wait after the `leases`-th counted lease failed; `jitter` is in [0, 1)."""
        bounds = QueueSpec("", retry_min_seconds=self.min_seconds, retry_max_seconds=self.max_seconds)
        return retry_delay_seconds(bounds, leases=leases, jitter=jitter)

    def __repr__(self) -> str:
        return f"Backoff({self.min_seconds:g}, {self.max_seconds:g}, attempts={self.attempts})"


_CHARGES: Final = ("counted", "uncounted")


def _fraction_of(given: object, before: float) -> float:
    """Return a reported fraction within [0, 1]; `before` for what is no number."""
    try:
        fraction = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return before
    return before if isnan(fraction) else min(1.0, max(0.0, fraction))


def _progress_text(given: object) -> str:
    """Return a reported text as a store can hold it: cut, without NUL and halves of characters."""
    try:
        text = given if isinstance(given, str) else str(given)
    except Exception:  # noqa: BLE001  a `__str__` of the user
        return ""
    return text[:MAX_PROGRESS_CHARACTERS].replace("\0", " ").encode("utf-8", "replace").decode()


_NOTHING: Final[tuple[Progress | None, bytes | None]] = (None, None)
_NO_HEADERS: Final[Headers] = MappingProxyType({})


class Task:
    """A leased task, as passed to a handler. The worker renews its lease while the handler runs."""

    __slots__ = ("_checkpoint", "_progress", "_sent", "_shown", "lease", "lost", "lost_reason", "on_news")

    lost: bool
    """True once another worker has the task, or may lease it. A plain flag, as nothing waits for it: an `Event` would
    cost ten times the rest of the task."""
    on_news: "Callable[[Task], None] | None"
    """Called, in any thread, after each progress and checkpoint; for the worker itself."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.lost_reason = ""
        self.lost = False
        self.on_news = None
        # Each is set in one step and compared by identity, so that any thread may report without a lock.
        self._progress: Progress | None = None
        self._checkpoint: bytes | None = None
        self._sent: tuple[Progress | None, bytes | None] = _NOTHING
        self._shown: tuple[Progress | None, Progress | None] = (None, None)
        """The progress last made ready to be sent, and that as it is sent."""

    @property
    def queue(self) -> str:
        """The task's queue."""
        return self.lease.queue

    @property
    def name(self) -> str:
        """The task's name, chosen by the producer or the queue."""
        return self.lease.name

    @property
    def tag(self) -> str | None:
        """The task's tag, or None."""
        return self.lease.tag

    @property
    def payload(self) -> bytes:
        """The bytes that the producer added."""
        return self.lease.payload

    @property
    def text(self) -> str:
        """The payload as UTF-8 text. Raises `UnicodeDecodeError`."""
        return self.lease.payload.decode()

    @property
    def lease_number(self) -> int:
        """1 for the first counted lease of the task; above 1 when an earlier one failed or expired."""
        return self.lease.lease_number

    @property
    def headers(self) -> Headers:
        """The headers that the producer gave the task; none: an empty map."""
        return self.lease.headers or _NO_HEADERS

    @property
    def last_checkpoint(self) -> bytes | None:
        """The checkpoint last saved, in this lease or an earlier one; None: there is none, begin at the beginning."""
        return self.lease.checkpoint if self._checkpoint is None else self._checkpoint

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how far the work is, for people: `task.progress(0.4, "page 12 of 30")`. May be called from any thread.

        It goes out with the lease's next renewal, within about a second, never more than once a second; only the last
        counts. No progress fails a task: `fraction` is brought into [0, 1], of `text` the first 200 characters are
        kept, and what is no number leaves the fraction as it was.
        """
        before = self._progress.fraction if self._progress is not None else 0.0
        self._progress = Progress(_fraction_of(fraction, before), _progress_text(text))
        self._report()

    def checkpoint(self, data: bytes) -> None:
        """Save where the work is, for the task's next lease (`last_checkpoint`), as `progress` goes out.

        If the handler fails, it is sent before the task is released. Raises `InvalidRequestError` above 16 KiB.
        """
        check_checkpoint(data)
        self._checkpoint = data
        self._report()

    def json(self) -> object:
        """Return the payload parsed as JSON. Raises `ValueError`."""
        return json.loads(self.lease.payload)

    def check(self) -> None:
        """Raise `LeaseLostError` when the lease is lost; call it in long loops, and before what must not run twice."""
        if self.lost:
            raise LeaseLostError(
                f"task {self.name} of {self.queue} is no longer held ({self.lost_reason}): stop working on it",
                tokens=[self.lease.token],
            )

    def mark_lost(self, reason: str) -> None:
        """Mark the lease as lost; for the worker itself."""
        if not self.lost:
            self.lost_reason = reason
            self.lost = True

    def news(self) -> Renewal | None:
        """Return a renewal with the progress and the checkpoint not sent yet, or None; for the worker itself."""
        progress, checkpoint = self._progress, self._checkpoint
        progress_sent, checkpoint_sent = self._sent
        if progress is progress_sent and checkpoint is checkpoint_sent:
            return None
        return Renewal(
            self.lease.token,
            progress=None if progress is None or progress is progress_sent else self._redacted(progress),
            checkpoint=None if checkpoint is checkpoint_sent else checkpoint,
        )

    def mark_sent(self, news: Renewal) -> None:
        """Record that `news` was sent; for the worker itself."""
        progress, checkpoint = self._sent
        reported, shown = self._shown
        self._sent = (
            progress if news.progress is None or news.progress is not shown else reported,
            checkpoint if news.checkpoint is None else news.checkpoint,
        )

    def _redacted(self, progress: Progress) -> Progress:
        """Return a progress as it leaves the worker: its text is redacted once, when it is sent."""
        reported, shown = self._shown
        if progress is not reported or shown is None:
            text = redacted(progress.text, [self.lease.payload])[:MAX_PROGRESS_CHARACTERS]
            shown = Progress(progress.fraction, text)
            self._shown = (progress, shown)
        return shown

    def _report(self) -> None:
        if self.on_news is not None:
            self.on_news(self)

    def __repr__(self) -> str:
        return f"Task(queue={self.queue!r}, name={self.name!r}, tag={self.tag!r}, lease_number={self.lease_number})"
