"""A search for tasks as a value, and whether a task matches it. Pure."""

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from queue_core.clock import Instant
from queue_core.errors import InvalidRequestError
from queue_core.limits import MAX_INTEGER, MAX_PEEK_TASKS, check_page, check_tag, check_text, check_whole
from queue_core.task import ALL_STATES, ANY, StoredTask, TagFilter, TaskState
from queue_core.verbs import Page
from queue_core.verbs.validation import check_choice, check_instant

Action: TypeAlias = Literal["release", "delete", "redrive", "postpone", "retag"]
"""A change of all tasks that match."""

LIVING: Final = ALL_STATES - {TaskState.DEAD}
STATES_OF: Final[dict[Action, frozenset[TaskState]]] = {
    "release": frozenset({TaskState.LEASED}),
    "delete": ALL_STATES,
    "redrive": frozenset({TaskState.DEAD}),
    "postpone": frozenset({TaskState.DELAYED}),
    "retag": ALL_STATES,
}
"""The states of tasks that a change is possible for. Leased tasks match a retag too, and are left as they are."""
SEARCHED_BYTES: Final = 64 * 1024
"""The beginning of each payload that is searched for a text."""
MAX_SCANNED: Final = 100_000
"""Tasks that one call looks at, at most."""
SCANNED: Final = 10_000
"""Tasks that one call looks at unless it says otherwise."""
_PAYLOADS_PER_PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class Search:
    """The tasks to find: all that meet every criterion that is given.

    Args:
        min_leases: leases charged so far, at least.
        added_after, added_before: the instant of the add is not before the one, and before the other.
        worker: holds the task now, or held it in one of its attempts.
        error: the class of the error of its last attempt, or that attempt's outcome, such as `expired`.
        contains: a text in the first 64 KiB of the payload.
        names: those of the tasks that are meant; none: any.
        as_of: the instant of a count, as its answer has it: only tasks that matched then and were not leased, ended or
            readied since.
    """

    tags: TagFilter = ANY
    states: frozenset[TaskState] = ALL_STATES
    min_leases: int = 0
    added_after: Instant | None = None
    added_before: Instant | None = None
    worker: str = ""
    error: str = ""
    contains: str = ""
    names: frozenset[str] = frozenset()
    as_of: Instant | None = None

    @property
    def needle(self) -> bytes:
        """The text that a payload must contain, as bytes."""
        return self.contains.encode("utf-8")

    def matches(self, task: StoredTask) -> bool:
        """Return whether a task meets every criterion; `tags` and `states` are those of the page it is from."""
        last = task.attempts[-1] if task.attempts else None
        return (
            task.state in self.states
            and self.tags.accepts(task.tag)
            and task.leases >= self.min_leases
            and (self.added_after is None or task.added_at >= self.added_after)
            and (self.added_before is None or task.added_at < self.added_before)
            and (not self.worker or self.worker in {task.worker, *(one.worker for one in task.attempts)})
            and (not self.error or (last is not None and self.error in {last.error, last.outcome}))
            and (not self.contains or self.needle in task.payload)
            and (not self.names or task.shown_name in self.names)
            and (self.as_of is None or self._was_met(task, self.as_of))
        )

    def _was_met(self, task: StoredTask, at: Instant) -> bool:
        """Return whether a task that matches now did so at an earlier instant, as far as the task itself shows.

        A search for all that is not dead, and for no history, is met since the add, by what was leased since then too.
        """
        asks_for_history = self.min_leases or self.worker or self.error
        if self.states >= LIVING and not asks_for_history and not (self._is_for_the_living and _may_be_redriven(task)):
            return task.added_at <= at
        return unchanged_since(task) <= at

    @property
    def _is_for_the_living(self) -> bool:
        return TaskState.DEAD not in self.states

    def within(self, action: Action) -> "Search":
        """Return the search for those of the tasks that can be changed so."""
        return replace(self, states=self.states & STATES_OF[action])

    @property
    def payload_bytes(self) -> int:
        """The bytes of each payload that have to be read."""
        return SEARCHED_BYTES if self.contains else 0

    @property
    def page_tasks(self) -> int:
        """The tasks that are read at once."""
        return _PAYLOADS_PER_PAGE if self.contains else MAX_PEEK_TASKS


def _may_be_redriven(task: StoredTask) -> bool:
    """Return whether a task has fewer leases charged than when its last attempt ended, by more than that one."""
    if not task.attempts:
        return False
    last = task.attempts[-1]
    return task.leases < last.lease_number - (last.outcome == "given_back")


def unchanged_since(task: StoredTask) -> Instant:
    """Return since when a task is in its state: it was added, leased, given back, readied, redriven or died then.

    Of a delayed or leased task the eta is yet to come, and says nothing.
    """
    begun = 0 if task.state in (TaskState.DELAYED, TaskState.LEASED) else task.eta
    ended = task.attempts[-1].ended_at if task.attempts else 0
    return Instant(max(task.added_at, task.leased_at, begun, ended))


def check_search(search: Search) -> None:
    """Raise `InvalidRequestError` for a search that is none."""
    check_whole("min_leases", search.min_leases, 0, MAX_INTEGER)
    for name in ("added_after", "added_before", "as_of"):
        at = getattr(search, name)
        if at is not None:
            check_instant(name, at)
    if len(search.names) > MAX_PEEK_TASKS:
        raise InvalidRequestError(f"names must be at most {MAX_PEEK_TASKS:,}: {len(search.names):,}")
    for name in ("worker", "error", "contains"):
        text = getattr(search, name)
        if text:
            check_text(name, text)


def check_scan(scan: int, *, after: int, limit: int = MAX_PEEK_TASKS, payload_bytes: int = 0) -> None:
    """Raise `InvalidCountError` for a number of one call that searches beyond its bounds."""
    check_page(limit, after=after, payload_bytes=payload_bytes)
    check_whole("scan", scan, 1, MAX_SCANNED)


@dataclass(frozen=True, slots=True)
class ChangeTo:
    """The values that a change gives to tasks: the eta of a postponement, the tag of a retag (None: no tag)."""

    eta: Instant | None = None
    tag: str | None = None


NO_VALUES: Final = ChangeTo()


def check_action(action: Action, to: ChangeTo) -> None:
    """Raise `InvalidRequestError` for an unknown change, a postponement without an eta, or a value of anything else."""
    check_choice("action", action, tuple(STATES_OF))
    if (action == "postpone") != (to.eta is not None):
        raise InvalidRequestError("eta: a postponement has one, and nothing else has")
    if to.tag is not None and action != "retag":
        raise InvalidRequestError("tag: only a retag has one")
    if to.tag is not None:
        check_tag(to.tag)
    if to.eta is not None:
        check_instant("eta", to.eta)


@dataclass(frozen=True, slots=True)
class SearchPage:
    """Tasks that match, oldest first by id, and how far the search came.

    Args:
        next_after: the next call continues behind it; None: the search is over.
        scanned: tasks that were looked at.
        total: tasks of these tags and states that there are.
    """

    tasks: tuple[StoredTask, ...]
    next_after: int | None
    scanned: int
    total: int


@dataclass(frozen=True, slots=True)
class MatchedBatch:
    """The outcome of one step of a change: as `SearchPage`, with how many tasks matched and how many were changed.

    `as_of`: the instant by the store's clock at which the step began. Give that of a count to the change that follows
    (`Search.as_of`), and what came since is left alone. None: from a server that does not say it.
    """

    matched: int
    changed: int
    next_after: int | None
    scanned: int
    total: int
    as_of: Instant | None = None


class Scan:
    """The state of one call that searches: page after page, until enough matches or looks."""

    def __init__(self, search: Search, *, after: int, limit: int, most: int, payload_bytes: int = 0) -> None:
        """Raises `InvalidRequestError`."""
        check_search(search)
        check_scan(most, limit=limit, after=after, payload_bytes=payload_bytes)
        self.search = search
        self._payload_bytes = payload_bytes
        self._limit = limit
        self._most = most
        self.after = after
        self.found: list[StoredTask] = []
        self.scanned = 0
        self._is_over = not search.states

    @property
    def goes_on(self) -> bool:
        """Return whether another page is to be read."""
        return not self._is_over and len(self.found) < self._limit and self.scanned < self._most

    @property
    def page_tasks(self) -> int:
        """The number of tasks to read next."""
        return min(self.search.page_tasks, self._most - self.scanned)

    @property
    def payload_bytes(self) -> int:
        """The bytes of each payload to read."""
        return max(self.search.payload_bytes, self._payload_bytes)

    def take(self, page: Page) -> None:
        """Look at a page."""
        for task in page.tasks:
            self.scanned += 1
            self.after = task.id
            if self.search.matches(task):
                self.found.append(replace(task, payload=task.payload[: self._payload_bytes]))
                if len(self.found) == self._limit:
                    self._is_over = page.next_after is None and task is page.tasks[-1]
                    return
        if page.next_after is None:
            self._is_over = True
        else:
            self.after = max(self.after, page.next_after)

    @property
    def next_after(self) -> int | None:
        """The cursor behind what was looked at; None: that was all."""
        return None if self._is_over else self.after
