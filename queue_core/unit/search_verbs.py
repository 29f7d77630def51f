"""Searches, and changes of all that match, as verbs (ADR 133). Other callers' transactions come between their steps."""

from dataclasses import dataclass, fields
from typing import ClassVar, cast

from queue_core.limits import MAX_PEEK_TASKS
from queue_core.unit.searches import change_pieces, keep_plan, plan_of, scanned
from queue_core.unit.verb import InPieces, Steps, Stepwise, WriteStep
from queue_core.verbs import ClientCall, roles, wire
from queue_core.verbs.criteria import (
    NO_VALUES,
    SCANNED,
    ChangeTo,
    MatchedBatch,
    Scan,
    Search,
    SearchPage,
    check_action,
    check_scan,
    check_search,
)
from queue_core.verbs.matching import CHANGES, Action, Given
from queue_core.verbs.wire import Json


@dataclass(frozen=True, slots=True)
class FindTasks(Stepwise[SearchPage]):
    """Return up to `limit` tasks that match, of up to `scan` that are looked at."""

    path = "/v1/queues/{queue}/search"
    summary = "Find tasks, by what they went through."
    operation = "search"
    permission, role, access = "search", roles.INSPECT, "list"

    queue: str
    wanted: Search
    after: int = 0
    limit: int = 100
    scan: int = SCANNED
    payload_bytes: int = 0

    def check(self) -> None:
        check_scan(self.scan, after=self.after, limit=self.limit, payload_bytes=self.payload_bytes)
        check_search(self.wanted)

    def steps(self, _by: str, _call: ClientCall | None) -> Steps[SearchPage]:
        scan = Scan(self.wanted, after=self.after, limit=self.limit, most=self.scan, payload_bytes=self.payload_bytes)
        total = yield from scanned(self.queue, scan)
        return SearchPage(tuple(scan.found), scan.next_after, scan.scanned, total.tasks)

    def body(self) -> Json:
        limits = {"limit": self.limit, "payload_bytes": self.payload_bytes}
        return {**_search_json(self.wanted, after=self.after, scan=self.scan), **limits}

    @classmethod
    def result_of(cls, answer: Json) -> SearchPage:
        page = wire.page_of(answer)
        return SearchPage(page.tasks, page.next_after, cast("int", answer["scanned"]), cast("int", answer["total"]))


@dataclass(frozen=True, slots=True)
class ChangeMatching(Stepwise[MatchedBatch]):
    """Change, or only count, up to 1,000 tasks that match, of up to `scan` that are looked at."""

    path = "/v1/queues/{queue}/{action}-matching"
    summary = operation = permission = ""  # of each action: see `matching.CHANGES`
    answers = MatchedBatch
    members: ClassVar[dict[Given, str]] = {"eta": "eta", "tag": "new_tag"}
    """The members of a request that have what a change gives."""

    queue: str
    action: Action
    wanted: Search
    dry_run: bool
    after: int = 0
    scan: int = SCANNED
    to: ChangeTo = NO_VALUES

    @property
    def is_keyed(self) -> bool:
        return not self.dry_run

    def check(self) -> None:
        check_action(self.action, self.to)
        check_search(self.wanted)
        check_scan(self.scan, after=self.after)

    def steps(self, by: str, call: ClientCall | None) -> Steps[MatchedBatch]:
        check_action(self.action, self.to)
        wanted = self.wanted.within(self.action)
        scan = Scan(wanted, after=self.after, limit=MAX_PEEK_TASKS, most=self.scan)
        found = plan_of(scan, (yield from scanned(self.queue, scan)))
        if self.dry_run:
            return found.batch
        plan = found if call is None else (yield WriteStep(lambda work: keep_plan(work, call, found)))
        pieces = change_pieces(self.queue, self.action, wanted, plan, to=self.to, by=by)
        return plan.answer((yield InPieces(pieces)))

    def body(self) -> Json:
        given = CHANGES[self.action].gives
        value: Json = {self.members[given]: getattr(self.to, given)} if given else {}
        return {**_search_json(self.wanted, after=self.after, scan=self.scan), "dry_run": self.dry_run, **value}

    @classmethod
    def result_of(cls, answer: Json) -> MatchedBatch:
        known = {field.name: answer[field.name] for field in fields(MatchedBatch) if field.name in answer}
        return MatchedBatch(**known)  # type: ignore[arg-type]


def _search_json(wanted: Search, *, after: int, scan: int) -> Json:
    return {
        **wire.tags_json(wanted.tags),
        "states": [wire.STATE_NAMES[state] for state in sorted(wanted.states)],
        "min_leases": wanted.min_leases,
        "added_after": wanted.added_after,
        "added_before": wanted.added_before,
        "worker": wanted.worker,
        "error": wanted.error,
        "contains": wanted.contains,
        **({"names": sorted(wanted.names)} if wanted.names else {}),
        **({"as_of": wanted.as_of} if wanted.as_of is not None else {}),
        "after": after,
        "scan": scan,
    }
