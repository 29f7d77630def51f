"""`HttpQueue` and `HttpQueues`: the verbs over HTTP, for programs that use a server."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast
from urllib.parse import urlencode

from queue_core.api import (
    Ended,
    Error,
    Renewable,
    as_deletions,
    as_names,
    as_new_tasks,
    as_renewals,
    as_states,
    as_tokens,
    payloads_of,
)
from queue_core.attempts.attempt import WORKER_DIED, Failure
from queue_core.attempts.failures import as_failure
from queue_core.errors import InvalidRequestError
from queue_core.http_api import values
from queue_core.http_api.caller import HttpCaller, Retries, Session, quoted
from queue_core.http_api.values import Json
from queue_core.limits import (
    check_cursor,
    check_delay_seconds,
    check_lease_count,
    check_lease_seconds,
    check_lifetime_seconds,
    check_page,
    check_tag,
    check_text,
    check_wait_seconds,
)
from queue_core.stats import FinishedLease, History, QueueStats, TagStats, WorkerActivity
from queue_core.task import ALL_STATES, ANY, Lease, NewTask, QueueSpec, TagFilter, TaskState
from queue_core.telemetry import instrumentation
from queue_core.validation import check_storage_limit
from queue_core.verbs import (
    Added,
    Busy,
    Deletion,
    ExchangeResult,
    Observation,
    ObservationQuery,
    Page,
    Renewed,
    Storage,
)

if TYPE_CHECKING:
    from queue_core.clock import Instant
    from queue_core.criteria import Action, MatchedBatch, Search, SearchPage
    from queue_core.registration import Registration
    from queue_core.schedules.report import Schedules
    from queue_core.stats import LeasingWorker

TIMEOUT_SECONDS = 30.0
"""How long a reply may take, besides `wait_seconds`."""
RETRIES = Retries()


class HttpQueue:
    """A `Queue` of a server. Thread-safe."""

    def __init__(
        self,
        url: str,
        name: str,
        *,
        token: str | None = None,
        retries: Retries = RETRIES,
        timeout_seconds: float = TIMEOUT_SECONDS,
        caller: HttpCaller | None = None,
        session: Session | None = None,
    ) -> None:
        """Args:
        url: `http://host:port`, `https://host` or `unix:///path`.
        timeout_seconds: how long a reply may take, besides `wait_seconds`.
        caller: connections to share instead of opening new ones.
        session: numbers the one change that this object is for, which may have been sent before.
        """
        self._caller = caller or HttpCaller(url, token=token, retries=retries, timeout_seconds=timeout_seconds)
        self._name = name
        self._path = f"/v1/queues/{quoted(name)}"
        self._session = session

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._name

    def add(self, tasks: bytes | NewTask | Iterable[NewTask], *, connection: object | None = None) -> list[Added]:
        """See `Queue.add`."""
        _refuse_connection(connection)
        batch = as_new_tasks(tasks)
        if instrumentation.active is not None:
            return instrumentation.active.add(self._name, batch, self._add)
        return self._add(batch)

    def lease(
        self,
        count: int = 1,
        *,
        seconds: float | None = None,
        tags: TagFilter = ANY,
        worker: str = "",
        wait_seconds: float = 0.0,
    ) -> list[Lease]:
        """See `Queue.lease`."""
        body = _lease_json(count, seconds, tags, worker, wait_seconds)
        return values.leases_of(self._grant("lease", body, wait_seconds)["leases"])

    def exchange(
        self,
        deletions: Sequence[Deletion],
        *,
        count: int = 1,
        seconds: float | None = None,
        tags: TagFilter = ANY,
        worker: str = "",
        wait_seconds: float = 0.0,
    ) -> ExchangeResult:
        """See `Queue.exchange`."""
        body = _lease_json(count, seconds, tags, worker, wait_seconds)
        body["deletions"] = [values.deletion_json(deletion) for deletion in deletions]
        answer = self._grant("exchange", body, wait_seconds)
        leases, lost = values.leases_of(answer["leases"]), cast("list[str]", answer["lost"])
        return ExchangeResult(leases, lost, values.added_of(answer.get("added", [])))

    def renew(self, leases: Renewable | Iterable[Renewable], *, seconds: float | None = None) -> list[Renewed]:
        """See `Queue.renew`."""
        answer = self._change("renew", values.renewals_json(as_renewals(leases, seconds), seconds))
        return values.many_of(Renewed, answer["renewed"])

    def release(
        self,
        leases: Lease | str | Iterable[Lease | str],
        *,
        delay_seconds: float | None = None,
        charge: Literal["counted", "uncounted"] = "counted",
        dead_reason: str = "",
        error: Error | None = None,
    ) -> list[FinishedLease]:
        """See `Queue.release`."""
        if delay_seconds is not None:
            check_delay_seconds(delay_seconds)
        body: Json = {
            "tokens": as_tokens(leases),
            "delay_seconds": delay_seconds,
            "charge": charge,
            "dead_reason": dead_reason,
        }
        if error is not None:
            body["error"] = values.failure_json(as_failure(error, payloads_of(leases)))
        return values.many_of(FinishedLease, self._change("release", body)["released"])

    def delete(
        self, leases: Ended | Iterable[Ended], *, then: Sequence[NewTask] = (), connection: object | None = None
    ) -> list[Added]:
        """See `Queue.delete`."""
        _refuse_connection(connection)
        deletions = [values.deletion_json(deletion) for deletion in as_deletions(leases, then)]
        return values.added_of(self._change("delete", {"deletions": deletions})["added"])

    def delete_by_name(self, names: str | Iterable[str]) -> list[Literal["deleted", "unknown", "tombstoned"]]:
        """See `Queue.delete_by_name`."""
        answer = self._change("delete-by-name", {"names": as_names(names)})
        return cast("list[Literal['deleted', 'unknown', 'tombstoned']]", answer["outcomes"])

    def purge(self, *, tags: TagFilter = ANY, dead: Literal["keep", "only"] = "keep") -> int:
        """See `Queue.purge`."""
        return cast("int", self._change("purge", {**values.tags_json(tags), "dead": dead})["count"])

    def pause(self) -> None:
        """See `Queue.pause`."""
        self._change("pause", {})

    def resume(self) -> None:
        """See `Queue.resume`."""
        self._change("resume", {})

    def redrive(self, names: str | Iterable[str] | None = None, *, tags: TagFilter = ANY) -> int:
        """See `Queue.redrive`."""
        listed = None if names is None else as_names(names)
        return cast("int", self._change("redrive", {**values.tags_json(tags), "names": listed})["count"])

    def stats(self, *, tags: TagFilter = ANY) -> QueueStats:
        """See `Queue.stats`."""
        json = values.tags_json(tags)
        query = _query(kind=json.get("kind"), tag=json.get("tags"))
        return values.flat_of(QueueStats, self._caller.get(f"{self._path}/stats{query}"))

    def tag_stats(self, *, after: str | None = None, limit: int = 100) -> list[TagStats]:
        """See `Queue.tag_stats`."""
        if after is not None:
            check_tag(after)
        check_page(limit)
        return values.tag_stats_of(self._caller.get(f"{self._path}/tags{_query(after=after, limit=limit)}")["tags"])

    def peek(
        self,
        *,
        tags: TagFilter = ANY,
        states: frozenset[TaskState] = ALL_STATES,
        names: Sequence[str] | None = None,
        after: int = 0,
        limit: int = 100,
        payload_bytes: int = 0,
    ) -> Page:
        """See `Queue.peek`."""
        check_page(limit, after=after, payload_bytes=payload_bytes)
        body: Json = {
            **values.tags_json(tags),
            "states": [values.STATE_NAMES[state] for state in sorted(as_states(states))],
            "names": None if names is None else as_names(names),
            "after": after,
            "limit": limit,
            "payload_bytes": payload_bytes,
        }
        return values.page_of(self._call("peek", body))

    def search(
        self,
        search: "Search",
        *,
        after: int = 0,
        limit: int = 100,
        scan: int = 10_000,
        payload_bytes: int = 0,
    ) -> "SearchPage":
        """See `Queue.search`."""
        from queue_core import criteria  # few programs search
        from queue_core.search import http

        criteria.check_scan(scan, after=after, limit=limit, payload_bytes=payload_bytes)
        body = {**http.search_json(search, after=after, scan=scan), "limit": limit, "payload_bytes": payload_bytes}
        return http.search_page_of(self._call("search", body))

    def change_matching(
        self,
        action: "Action",
        search: "Search",
        *,
        dry_run: bool,
        after: int = 0,
        scan: int = 10_000,
        eta: "Instant | None" = None,
        tag: str | None = None,
    ) -> "MatchedBatch":
        """See `Queue.change_matching`."""
        from queue_core.criteria import ChangeTo
        from queue_core.search import http

        to = ChangeTo(eta, tag)
        body = http.change_json(action, search, dry_run=dry_run, after=after, scan=scan, to=to)
        make = self._call if dry_run else self._change
        return http.matched_batch_of(make(f"{action}-matching", body))

    def history(
        self, *, names: str | Iterable[str] | None = None, before: int | None = None, limit: int = 100
    ) -> History:
        """See `Queue.history`."""
        check_page(limit)
        if before is not None:
            check_cursor(before, name="before")
        listed = None if names is None else as_names(names)
        body: Json = {"names": listed, "before": before, "limit": limit}
        return values.history_of(self._call("history", body))

    def close(self) -> None:
        """Close the connections, including those shared with other queues; calls in other threads fail."""
        self._caller.close()

    def _add(self, batch: list[NewTask]) -> list[Added]:
        body: Json = {"tasks": [values.new_task_json(task) for task in batch]}
        return values.added_of(self._change("add", body)["added"])

    def _change(self, verb: str, body: Json) -> Json:
        """Call a verb that takes effect once, however often it is sent."""
        return self._caller.post(f"{self._path}/{verb}", body, repeat="keyed", session=self._session)

    def _grant(self, verb: str, body: Json, wait_seconds: float) -> Json:
        """Call a verb that leases; with fewer retries, as its callers call again anyway."""
        path = f"{self._path}/{verb}"
        return self._caller.post(path, body, repeat="keyed", wait_seconds=wait_seconds, patience="short")

    def _call(self, verb: str, body: Json) -> Json:
        return self._caller.post(f"{self._path}/{verb}", body, repeat="safe")


class HttpQueues:
    """All queues of a server: a `Queues`. Thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        retries: Retries = RETRIES,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Args:
        url: `http://host:port`, `https://host` or `unix:///path`.
        timeout_seconds: how long a reply may take, besides `wait_seconds`.
        """
        self._caller = HttpCaller(url, token=token, retries=retries, timeout_seconds=timeout_seconds)

    def queue(self, name: str) -> HttpQueue:
        """See `Queues.queue`."""
        return HttpQueue(self._caller.url, name, caller=self._caller)

    def queue_for(self, name: str, session: Session) -> HttpQueue:
        """Return a queue for one change, which this session numbers: it may have been sent before."""
        return HttpQueue(self._caller.url, name, caller=self._caller, session=session)

    def put_queue(self, spec: QueueSpec) -> bool:
        """See `Queues.put_queue`."""
        path = f"/v1/queues/{quoted(spec.name)}"
        return cast("bool", self._caller.call("PUT", path, values.settings_json(spec), repeat="keyed")["created"])

    def delete_queue(self, name: str) -> int:
        """See `Queues.delete_queue`."""
        called = self._caller.call("DELETE", f"/v1/queues/{quoted(name)}", None, repeat="keyed")
        return cast("int", called["count"])

    def queues(self) -> list[QueueSpec]:
        """See `Queues.queues`."""
        return values.queues_of(self._caller.get("/v1/queues")["queues"])

    def storage(self) -> Storage:
        """See `Queues.storage`."""
        return values.flat_of(Storage, self._caller.get("/v1/storage"))

    def degradations(self) -> list[str]:
        """See `Queues.degradations`."""
        return cast("list[str]", self._caller.get("/readyz").get("reasons", []))

    def set_storage_limit(self, limit_bytes: int | None) -> None:
        """See `Queues.set_storage_limit`."""
        check_storage_limit(limit_bytes)
        self._caller.call("PUT", "/v1/storage", {"limit_bytes": limit_bytes}, repeat="keyed")

    def observe(
        self,
        queue: str,
        *,
        tags: TagFilter = ANY,
        after: int = 0,
        workers: Sequence[str] = (),
        ahead_seconds: float = 0.0,
    ) -> Observation:
        """See `Queues.observe`."""
        body = values.query_json(ObservationQuery(queue, tags, after, tuple(workers), ahead_seconds))
        del body["queue"]
        return values.observation_of(self._post(f"/v1/queues/{quoted(queue)}/observe", body))

    def observe_many(self, queries: Sequence[ObservationQuery]) -> list[Observation | None]:
        """See `Queues.observe_many`."""
        body: Json = {"looks": [values.query_json(query) for query in queries]}
        found = self._post("/v1/observe", body)["observations"]
        return [None if one is None else values.observation_of(one) for one in cast("list[Json | None]", found)]

    def retire_worker(self, worker: str, *, busy: Busy = "keep") -> bool:
        """See `Queues.retire_worker`."""
        return cast("bool", self._change(f"/v1/workers/{quoted(worker)}/retire", {"busy": busy})["retired"])

    def worker_activity(self, queue: str, *, prefix: str = "") -> list[WorkerActivity]:
        """Return the recent activity, as seen by one server, of workers whose names begin with `prefix`."""
        answer = self._caller.get(f"/v1/queues/{quoted(queue)}/workers{_query(prefix=prefix)}")
        return values.activities_of(answer["workers"])

    def release_worker(self, worker: str, *, failure: Failure = WORKER_DIED) -> list[FinishedLease]:
        """See `Queues.release_worker`."""
        body: Json = {} if failure == WORKER_DIED else {"failure": values.failure_json(failure)}
        answer = self._change(f"/v1/workers/{quoted(worker)}/release", body)
        return values.many_of(FinishedLease, answer["released"])

    def lead(self, name: str, holder: str, *, seconds: float) -> bool:
        """See `Queues.lead`."""
        check_lifetime_seconds("seconds of a lead", seconds)
        return cast("bool", self._change("/v1/lead", {"name": name, "holder": holder, "seconds": seconds})["held"])

    def register(self, kind: str, name: str, facts: Mapping[str, str], *, seconds: float) -> None:
        """See `Queues.register`."""
        from queue_core.registration import check_registration  # few programs register

        check_registration(kind, name, facts, seconds=seconds)
        self._change(f"/v1/registrations/{quoted(kind)}", {"name": name, "facts": dict(facts), "seconds": seconds})

    def present_workers(self) -> list["LeasingWorker"]:
        """See `Queues.present_workers`."""
        from queue_core.registrations.present_workers import worker_in

        return [worker_in(one) for one in cast("list[Json]", self._caller.get("/v1/present-workers")["workers"])]

    def registrations(self, kind: str) -> list["Registration"]:
        """See `Queues.registrations`."""
        from queue_core.registration import Registration  # few programs register

        found = self._caller.get(f"/v1/registrations/{quoted(kind)}")["registrations"]
        return [Registration(**one) for one in cast("list[Json]", found)]  # type: ignore[arg-type]

    @property
    def schedules(self) -> "Schedules":
        """See `Queues.schedules`."""
        from queue_core.periodic.http import HttpSchedules  # most programs have no schedule

        return HttpSchedules(self._caller)

    def wait_ready(self, queues: Sequence[tuple[str, TagFilter]], *, wait_seconds: float) -> str | None:
        """See `Queues.wait_ready`."""
        check_wait_seconds(wait_seconds)
        wanted = [{"queue": name, **values.tags_json(tags)} for name, tags in queues]
        body: Json = {"queues": wanted, "wait_seconds": wait_seconds}
        called = self._caller.post("/v1/wait", body, repeat="safe", wait_seconds=wait_seconds)
        return cast("str | None", called["queue"])

    def close(self) -> None:
        """Close the connections; calls in other threads fail."""
        self._caller.close()

    def _post(self, path: str, body: Json) -> Json:
        return self._caller.post(path, body, repeat="safe")

    def _change(self, path: str, body: Json) -> Json:
        """Make a call that takes effect once, however often it is sent."""
        return self._caller.post(path, body, repeat="keyed")


def _refuse_connection(connection: object | None) -> None:
    if connection is not None:
        raise InvalidRequestError(
            "a queue of a server can't take part in your transaction: leave `connection` out, or open the "
            "queue by its store's postgresql: URL"
        )


def _lease_json(count: int, seconds: float | None, tags: TagFilter, worker: str, wait_seconds: float) -> Json:
    check_lease_count(count)
    check_wait_seconds(wait_seconds)
    if seconds is not None:
        check_lease_seconds(seconds)
    body = values.tags_json(tags)
    body["count"] = count
    if seconds is not None:
        body["seconds"] = seconds
    if worker:
        body["worker"] = worker
    if wait_seconds:
        body["wait_seconds"] = wait_seconds
    return body


def _query(**members: object) -> str:
    for name, value in members.items():
        if isinstance(value, str):
            check_text(name, value)
    given = {name: value for name, value in members.items() if value not in (None, ())}
    return f"?{urlencode(given, doseq=True)}" if given else ""
