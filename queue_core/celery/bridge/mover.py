"""The loop of a bridge: take messages, add their tasks, acknowledge. What either side can't do now is tried again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Final, Literal, TypeVar

from queue_core.celery.bridge.message import BridgedMessage, Priorities, bridged_task
from queue_core.celery.bridge.source import BridgeSource
from queue_core.client.queue import Queues
from queue_core.clock import Clock
from queue_core.config.celery_names import store_name
from queue_core.errors import (
    InvalidRequestError,
    PermissionDeniedError,
    StorageLimitError,
    StoreUnavailableError,
    UnknownQueueError,
)
from queue_core.task import NewTask, QueueSpec

Answer = TypeVar("Answer")

BATCH: Final = 100
"""Messages of one transaction."""
BATCH_BYTES: Final = 8 << 20
MAX_KEPT: Final = 1_000
"""Messages that can't be moved: a bridge that has met so many ends, as something else is wrong."""
WAIT_SECONDS: Final = 0.5
"""How long an empty source is waited for before it is looked at again."""
SHOW_SECONDS: Final = 1.0
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class BridgePlan:
    """The way of messages: the queues that they go to.

    Args:
        to_queue: Celery's name of the queue that all messages go to; "": that of the queue each was in.
        namespace: of the broker's URL that the workers on Towline use.
    """

    to_queue: str = ""
    namespace: str = ""
    priorities: Priorities = "kept"

    def target(self, queue: str) -> str:
        """Return Celery's name of the queue that messages of `queue` go to."""
        return self.to_queue or queue

    def stored(self, queue: str) -> str:
        """Return the name in the store of the queue that messages of `queue` go to."""
        return store_name(self.target(queue), namespace=self.namespace)


@dataclass(frozen=True, slots=True)
class BridgeNote:
    """An occurrence that a person should know of while a bridge goes on.

    Args:
        kind: `away`, `back`: a side does not answer, or answers again; `kept`: a message stays; `priorities`: some
            messages have one.
        what: the side, or the message.
        pause_seconds: until the next try; 0: none is needed.
    """

    kind: Literal["away", "back", "kept", "priorities"]
    what: str
    reason: str = ""
    pause_seconds: float = 0.0


@dataclass(slots=True)
class BridgeCounts:
    """The messages so far. `known`: messages whose task was there already. `unnamed`: moved without a name."""

    moved: int = 0
    known: int = 0
    unnamed: int = 0
    kept: list[BridgeNote] = field(default_factory=list)


class BridgeMover:
    """A move of messages from a source into queues."""

    def __init__(
        self,
        source: BridgeSource,
        queues: Queues,
        plan: BridgePlan,
        *,
        target: str,
        clock: Clock,
        stop: Event,
        on_note: Callable[[BridgeNote], None],
        progress: Callable[[int, int], None],
    ) -> None:
        """Make a move. `target`: where the queues are, without secrets. `progress` gets what is moved, and what waits.

        `stop` ends it after the batch in hand.
        """
        self.counts = BridgeCounts()
        self._source = source
        self._queues = queues
        self._plan = plan
        self._target = target
        self._clock = clock
        self._stop = stop
        self._on_note = on_note
        self._progress = progress
        self._kept: set[str] = set()
        self._has_priorities = False
        self._shown_at = clock.monotonic()
        self._shown: tuple[int, int | None] = (0, 0)

    def prepare(self, queues: Sequence[str]) -> None:
        """Create the missing ones of the queues that messages of `queues` go to."""
        for name in dict.fromkeys(self._plan.stored(queue) for queue in queues):
            try:
                self._queues.queue(name).stats()
            except UnknownQueueError:
                self._queues.put_queue(QueueSpec(name))
            except PermissionDeniedError:  # a producer's token: its adds will tell
                pass

    def run(self, *, once: bool) -> Literal["empty", "stopped", "flawed"]:
        """Move until the source is empty (`once`), `stop` is set, or too many messages can't be moved."""
        empties = 0
        while not self._stop.is_set():
            taken = self._from_source(lambda: self._source.take(BATCH, wait_seconds=WAIT_SECONDS)) or []
            empties = 0 if taken else empties + 1
            for part in _parts(taken):
                self._move(part)
            if len(self.counts.kept) >= MAX_KEPT:
                return "flawed"
            if once and empties > 1 and self._from_source(self._source.waiting) == 0:
                return "empty"
            self._show(at_once=not taken)
        return "stopped"

    def _move(self, taken: Sequence[BridgedMessage]) -> None:
        """Add the tasks of messages; once the store has them, acknowledge the messages."""
        done: list[BridgedMessage] = []
        for name, group in _grouped_by_queue(taken, self._plan):
            tasks = [self._task(one) for one in group]
            whole = [(one, task) for one, task in zip(group, tasks, strict=True) if isinstance(task, NewTask)]
            for one, task in zip(group, tasks, strict=True):
                if isinstance(task, str):
                    self._keep(one, task)
            added = self._added(name, whole)
            if added is None:
                return  # stopped while the target was away: nothing is acknowledged
            done += added
        self._from_source(lambda: self._source.end(done))

    def _task(self, one: BridgedMessage) -> NewTask | str:
        """Return the task of a message, or why it has none."""
        if one.flaw:
            return one.flaw
        try:
            task = bridged_task(
                one, to_queue=self._plan.target(one.queue), now=self._clock.now(), priorities=self._plan.priorities
            )
        except (TypeError, ValueError) as error:
            return f"it can't be written as JSON: {error}"
        if task.priority and not self._has_priorities:
            self._has_priorities = True
            self._on_note(BridgeNote("priorities", one.queue))
        return task

    def _added(self, name: str, whole: Sequence[tuple[BridgedMessage, NewTask]]) -> list[BridgedMessage] | None:
        """Add tasks to a queue; return the messages whose tasks it has, None where that is not known."""
        if not whole:
            return []
        try:
            answers = self._call_target(lambda: self._add(name, [task for _, task in whole]))
        except InvalidRequestError as error:
            if len(whole) == 1:
                self._keep(whole[0][0], str(error))
                return []
            halves = (whole[: len(whole) // 2], whole[len(whole) // 2 :])
            results = [self._added(name, half) for half in halves]
            return None if None in results else [one for result in results for one in result or ()]
        if answers is None:
            return None
        for (_, task), status in zip(whole, answers, strict=True):
            is_new = status == "added"
            self.counts.moved += is_new
            self.counts.known += not is_new
            self.counts.unnamed += is_new and task.name is None
        return [one for one, _ in whole]

    def _add(self, name: str, tasks: Sequence[NewTask]) -> list[str]:
        try:
            return [added.status for added in self._queues.queue(name).add(tasks)]
        except UnknownQueueError:  # deleted meanwhile
            self._queues.put_queue(QueueSpec(name))
            raise

    def _keep(self, one: BridgedMessage, reason: str) -> None:
        if one.title not in self._kept:  # it comes again after a loss of the connection
            self._kept.add(one.title)
            note = BridgeNote("kept", one.title, reason)
            self.counts.kept.append(note)
            self._on_note(note)
        self._from_source(lambda: self._source.keep(one))

    def _call_target(self, call: Callable[[], list[str]]) -> list[str] | None:
        """Call the target until it answers; None when the bridge is stopped before. Raises its refusals."""
        for pause in pauses():
            try:
                answer = call()
            except (StoreUnavailableError, StorageLimitError, UnknownQueueError) as error:
                self._on_note(BridgeNote("away", self._target, str(error), pause))
                if self._stop.wait(pause):
                    return None
                continue
            if pause != FIRST_PAUSE_SECONDS:
                self._on_note(BridgeNote("back", self._target))
            return answer
        raise AssertionError("pauses have no end")

    def _from_source(self, call: Callable[[], Answer]) -> Answer | None:
        """Call the source; when it fails, connect again until it answers, and return None: messages come again."""
        try:
            return call()
        except self._source.errors as error:
            failure: BaseException = error
        for pause in pauses():
            self._on_note(BridgeNote("away", self._source.url, _reason(failure), pause))
            if self._stop.wait(pause):
                return None
            try:
                self._source.open()
            except self._source.errors as error:
                failure = error
                continue
            self._on_note(BridgeNote("back", self._source.url))
            return None
        raise AssertionError("pauses have no end")

    def _show(self, *, at_once: bool) -> None:
        now = self._clock.monotonic()
        if at_once or now - self._shown_at >= SHOW_SECONDS:
            self._shown_at = now
            waiting = self._from_source(self._source.waiting)
            seen = (self.counts.moved + self.counts.known, waiting)
            if waiting is not None and seen != self._shown:  # an idle bridge says nothing
                self._shown = seen
                self._progress(seen[0], waiting)


def pauses() -> Iterator[float]:
    """Yield the pauses before further tries, in seconds: each twice the one before, up to the longest."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _grouped_by_queue(taken: Sequence[BridgedMessage], plan: BridgePlan) -> Iterator[tuple[str, list[BridgedMessage]]]:
    groups: dict[str, list[BridgedMessage]] = {}
    for one in taken:
        groups.setdefault(plan.stored(one.queue), []).append(one)
    yield from groups.items()


def _parts(taken: Sequence[BridgedMessage]) -> Iterator[list[BridgedMessage]]:
    """Cut messages into parts of about `BATCH_BYTES`, at least one message each."""
    part: list[BridgedMessage] = []
    size = 0
    for one in taken:
        length = len(str(one.message.get("body") or ""))
        if part and size + length > BATCH_BYTES:
            yield part
            part, size = [], 0
        part.append(one)
        size += length
    if part:
        yield part


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
