"""The endpoints of searches: the form of their requests and responses, and their handlers.

One call looks at a bounded number of tasks, a page at a time, so that other calls come between; the caller goes on with
the cursor of the answer, and knows from `scanned` and `total` how far it is.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Final

from pydantic import Field
from typing_extensions import TypedDict

from queue_core import limits
from queue_core.clock import Instant
from queue_core.errors import PermissionDeniedError
from queue_core.limits import MAX_INTEGER
from queue_core.log import get_logger
from queue_core.server.base import events
from queue_core.server.schemas import Tagged, TaskOut, task_out
from queue_core.server.state import ServerState
from queue_core.server.v1.endpoint import Endpoint
from queue_core.server.v1.handlers import EndpointCall
from queue_core.server.v1.verb_endpoints import Served, endpoint_of
from queue_core.unit.search_verbs import ChangeMatching, FindTasks
from queue_core.verbs.criteria import MAX_SCANNED, NO_VALUES, SCANNED, ChangeTo, MatchedBatch, Search, SearchPage
from queue_core.verbs.matching import CHANGES, Action, Given, permission_of
from queue_core.verbs.roles import Role
from queue_core.verbs.wire import STATES, StateName

log = get_logger()

_Text = Annotated[str, Field(max_length=limits.MAX_WORKER_CHARACTERS)]


class MatchingRequest(Tagged):
    """The tasks that are meant: those that meet every criterion."""

    states: frozenset[StateName] = Field(frozenset(STATES), strict=False)
    min_leases: int = Field(0, ge=0, description="Leases charged so far, at least.")
    added_after: int | None = Field(None, ge=0, le=MAX_INTEGER, description="Added then or later, in microseconds.")
    added_before: int | None = Field(None, ge=0, le=MAX_INTEGER, description="Added before then, in microseconds.")
    worker: _Text = Field("", description="Holds the task now, or held it in one of its attempts.")
    error: _Text = Field("", description="The error of its last attempt, or that attempt's outcome.")
    contains: _Text = Field("", description="A text in the first 64 KiB of the payload.")
    names: frozenset[str] = Field(
        frozenset(), strict=False, max_length=limits.MAX_PEEK_TASKS, description="Only tasks of these names; none: any."
    )
    as_of: int | None = Field(
        None,
        ge=0,
        le=MAX_INTEGER,
        description="`as_of` of a count: only tasks that matched then, and did not move since.",
    )
    after: int = Field(0, ge=0, le=MAX_INTEGER, description="`next_after` of the answer before.")
    scan: int = Field(SCANNED, ge=1, le=MAX_SCANNED, description="Tasks to look at, at most.")

    def search(self) -> Search:
        """Return the search as a value."""
        return Search(
            self.filter(),
            frozenset(STATES[name] for name in self.states),
            self.min_leases,
            None if self.added_after is None else Instant(self.added_after),
            None if self.added_before is None else Instant(self.added_before),
            self.worker,
            self.error,
            self.contains,
            self.names,
            None if self.as_of is None else Instant(self.as_of),
        )


class SearchRequest(MatchingRequest):
    """A search: how many tasks to show, and how much of their payloads."""

    limit: int = Field(100, ge=1, le=limits.MAX_PEEK_TASKS, description="Tasks to find, at most.")
    payload_bytes: int = Field(0, ge=0, le=limits.MAX_PAYLOAD_BYTES, description="Payloads are cut to this.")


class ChangeRequest(MatchingRequest):
    """A step of a change of all that match: up to 1,000 of them. Without `dry_run: false` they are only counted."""

    dry_run: bool = Field(True, description="Only count.")  # noqa: FBT003 - pydantic's

    def to(self) -> ChangeTo:
        """Return what the change gives to tasks."""
        return NO_VALUES


class PostponeRequest(ChangeRequest):
    """The same, for a postponement."""

    eta: int = Field(ge=0, le=MAX_INTEGER, description="The new eta of each task, in microseconds since the epoch.")

    def to(self) -> ChangeTo:
        """See `ChangeRequest.to`."""
        return ChangeTo(eta=Instant(self.eta))


class RetagRequest(ChangeRequest):
    """The same, for another tag. Leased tasks match, and are left as they are."""

    new_tag: str | None = Field(description="The tag that they get; null: none.")

    def to(self) -> ChangeTo:
        """See `ChangeRequest.to`."""
        return ChangeTo(tag=self.new_tag)


_REQUESTS: Mapping[Given, type[ChangeRequest]] = {"": ChangeRequest, "eta": PostponeRequest, "tag": RetagRequest}


class FoundTasks(TypedDict):
    """Tasks that match, and how far the search came."""

    tasks: list[TaskOut]
    next_after: Annotated[int | None, Field(description="Give it as `after` to continue; null: the search is over.")]
    scanned: Annotated[int, Field(description="Tasks that this call looked at.")]
    total: Annotated[int, Field(description="Tasks of these tags and states that there are.")]


def read_search(call: EndpointCall) -> FindTasks:
    given = call.read(SearchRequest)
    return FindTasks(call.queue, given.search(), given.after, given.limit, given.scan, given.payload_bytes)


def found_tasks(_core: ServerState, _verb: FindTasks, page: SearchPage) -> FoundTasks:
    tasks = [task_out(task) for task in page.tasks]
    return {"tasks": tasks, "next_after": page.next_after, "scanned": page.scanned, "total": page.total}


async def check_contains(core: ServerState, call: EndpointCall, verb: FindTasks | ChangeMatching) -> None:
    """Raise `PermissionDeniedError` for a search in payloads by a caller from whom pages hide them, or parts of them.

    Who may not read a payload could find it out by searching, a character at a time.
    """
    role, options = call.principal.role, core.options
    if not verb.wanted.contains or role & (Role.WORKER | Role.ADMIN):
        return
    hides_all = not options.console_payloads and not role & Role.OPERATOR
    if hides_all or options.console_redact:
        what = "payloads" if hides_all else "parts of payloads"
        raise PermissionDeniedError(
            f"contains searches payloads, and {what} are hidden from the role {str(role.name).lower()}"
        )


def log_matching(_core: ServerState, call: EndpointCall, verb: ChangeMatching, batch: MatchedBatch) -> None:
    if batch.changed:
        log.info(events.TASKS_CHANGED, queue=call.queue, action=verb.action, tasks=batch.changed, by=call.who)


def matching_endpoint(action: Action) -> Endpoint:
    """Return the endpoint of a change of all that match."""
    about, permission = CHANGES[action], permission_of(action)
    takes = _REQUESTS[about.gives]

    def make(call: EndpointCall) -> ChangeMatching:
        given = call.read(takes)
        return ChangeMatching(call.queue, action, given.search(), given.dry_run, given.after, given.scan, given.to())

    made = endpoint_of(ChangeMatching, Served(takes, make, check_contains, log_matching))
    path = made.path.replace("{action}-matching", permission)
    operation = permission.replace("-", "_")
    return replace(made, path=path, summary=about.summary, permission=permission, operation=operation)


ENDPOINTS: Final = (
    endpoint_of(FindTasks, Served(SearchRequest, read_search, check_contains, answers=FoundTasks, out=found_tasks)),
    *(matching_endpoint(action) for action in CHANGES),
)
