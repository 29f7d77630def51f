"""The endpoints of searches: the form of their requests and responses, and their handlers.

One call looks at a bounded number of tasks, a page at a time, so that other calls come between; the caller goes on with
the cursor of the answer, and knows from `scanned` and `total` how far it is.
"""

from typing import Annotated

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
from queue_core.server.v1.handlers import EndpointCall, in_pieces
from queue_core.unit.searches import Total, change_pieces, keep_plan, plan_of, read_page, total_of
from queue_core.verbs.criteria import (
    MAX_SCANNED,
    NO_VALUES,
    SCANNED,
    Action,
    ChangeTo,
    MatchedBatch,
    Scan,
    Search,
    check_action,
    check_search,
)
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


class PostponeRequest(ChangeRequest):
    """The same, for a postponement."""

    eta: int = Field(ge=0, le=MAX_INTEGER, description="The new eta of each task, in microseconds since the epoch.")


class RetagRequest(ChangeRequest):
    """The same, for another tag. Leased tasks match, and are left as they are."""

    new_tag: str | None = Field(description="The tag that they get; null: none.")


class FoundTasks(TypedDict):
    """Tasks that match, and how far the search came."""

    tasks: list[TaskOut]
    next_after: Annotated[int | None, Field(description="Give it as `after` to continue; null: the search is over.")]
    scanned: Annotated[int, Field(description="Tasks that this call looked at.")]
    total: Annotated[int, Field(description="Tasks of these tags and states that there are.")]


async def search(core: ServerState, call: EndpointCall) -> FoundTasks:
    params = call.read(SearchRequest)
    _check_contains(core, call, params)
    scan = Scan(
        params.search(), after=params.after, limit=params.limit, most=params.scan, payload_bytes=params.payload_bytes
    )
    total = await _run(core, call.queue, scan)
    tasks = [task_out(task) for task in scan.found]
    return {"tasks": tasks, "next_after": scan.next_after, "scanned": scan.scanned, "total": total.tasks}


def _check_contains(core: ServerState, call: EndpointCall, params: MatchingRequest) -> None:
    """Raise `PermissionDeniedError` for a search in payloads by a caller from whom pages hide them, or parts of them.

    Who may not read a payload could find it out by searching, a character at a time.
    """
    role, options = call.principal.role, core.options
    if not params.contains or role & (Role.WORKER | Role.ADMIN):
        return
    hides_all = not options.console_payloads and not role & Role.OPERATOR
    if hides_all or options.console_redact:
        what = "payloads" if hides_all else "parts of payloads"
        raise PermissionDeniedError(
            f"contains searches payloads, and {what} are hidden from the role {str(role.name).lower()}"
        )


async def release_matching(core: ServerState, call: EndpointCall) -> MatchedBatch:
    return await _change(core, call, "release", call.read(ChangeRequest))


async def delete_matching(core: ServerState, call: EndpointCall) -> MatchedBatch:
    return await _change(core, call, "delete", call.read(ChangeRequest))


async def redrive_matching(core: ServerState, call: EndpointCall) -> MatchedBatch:
    return await _change(core, call, "redrive", call.read(ChangeRequest))


async def postpone_matching(core: ServerState, call: EndpointCall) -> MatchedBatch:
    params = call.read(PostponeRequest)
    return await _change(core, call, "postpone", params, to=ChangeTo(eta=Instant(params.eta)))


async def retag_matching(core: ServerState, call: EndpointCall) -> MatchedBatch:
    params = call.read(RetagRequest)
    return await _change(core, call, "retag", params, to=ChangeTo(tag=params.new_tag))


async def _change(
    core: ServerState, call: EndpointCall, action: Action, params: ChangeRequest, *, to: ChangeTo = NO_VALUES
) -> MatchedBatch:
    _check_contains(core, call, params)
    check_action(action, to)
    wanted = params.search().within(action)
    scan = Scan(wanted, after=params.after, limit=limits.MAX_PEEK_TASKS, most=params.scan)
    found = plan_of(scan, await _run(core, call.queue, scan))
    if params.dry_run:
        return found.batch
    client = call.client_call
    plan = await core.committer.run(lambda work: keep_plan(work, client, found))
    changed = await in_pieces(core, client, change_pieces(call.queue, action, wanted, plan, to=to, by=call.who))
    if changed:
        log.info(events.TASKS_CHANGED, queue=call.queue, action=action, tasks=changed, by=call.who)
    return plan.answer(changed)


async def _run(core: ServerState, queue: str, scan: Scan) -> Total:
    """Search, and return how many tasks there are to search."""
    check_search(scan.search)
    total = await core.read(lambda work: total_of(work, queue, scan.search))
    while scan.goes_on:
        scan.take(await core.read(lambda work: read_page(work, queue, scan)))
    return total
