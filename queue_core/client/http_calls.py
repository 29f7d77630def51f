"""`HttpQueue` and `HttpQueues`: the verbs over HTTP, for programs that use a server."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from queue_core.attempts.failures import as_failure
from queue_core.client.http.caller import HttpCaller, Retries, Session, quoted
from queue_core.client.over_http import carry_out, query_text
from queue_core.client.queue import (
    Ended,
    Error,
    Queue,
    Queues,
    Renewable,
    as_deletions,
    as_new_tasks,
    as_renewals,
    as_tokens,
    payloads_of,
)
from queue_core.errors import InvalidRequestError
from queue_core.limits import (
    check_delay_seconds,
    check_lease_count,
    check_lease_seconds,
    check_wait_seconds,
)
from queue_core.stats import FinishedLease, WorkerActivity
from queue_core.task import ANY, Lease, NewTask, TagFilter
from queue_core.telemetry import instrumentation
from queue_core.unit.verb import Verb
from queue_core.verbs import (
    Added,
    Deletion,
    ExchangeResult,
    Renewed,
    wire,
)
from queue_core.verbs.wire import Json

if TYPE_CHECKING:
    from queue_core.stats import LeasingWorker

T = TypeVar("T")

TIMEOUT_SECONDS = 30.0
"""How long a reply may take, besides `wait_seconds`."""
RETRIES = Retries()


class HttpQueue(Queue):
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
        return wire.leases_of(self._grant("lease", body, wait_seconds)["leases"])

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
        body["deletions"] = [wire.deletion_json(deletion) for deletion in deletions]
        answer = self._grant("exchange", body, wait_seconds)
        leases, lost = wire.leases_of(answer["leases"]), cast("list[str]", answer["lost"])
        return ExchangeResult(leases, lost, wire.added_of(answer.get("added", [])))

    def renew(self, leases: Renewable | Iterable[Renewable], *, seconds: float | None = None) -> list[Renewed]:
        """See `Queue.renew`."""
        answer = self._change("renew", wire.renewals_json(as_renewals(leases, seconds), seconds))
        return wire.many_of(Renewed, answer["renewed"])

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
            body["error"] = wire.failure_json(as_failure(error, payloads_of(leases)))
        return wire.many_of(FinishedLease, self._change("release", body)["released"])

    def delete(
        self, leases: Ended | Iterable[Ended], *, then: Sequence[NewTask] = (), connection: object | None = None
    ) -> list[Added]:
        """See `Queue.delete`."""
        _refuse_connection(connection)
        deletions = [wire.deletion_json(deletion) for deletion in as_deletions(leases, then)]
        return wire.added_of(self._change("delete", {"deletions": deletions})["added"])

    def close(self) -> None:
        """Close the connections, including those shared with other queues; calls in other threads fail."""
        self._caller.close()

    def _add(self, batch: list[NewTask]) -> list[Added]:
        body: Json = {"tasks": [wire.new_task_json(task) for task in batch]}
        return wire.added_of(self._change("add", body)["added"])

    def _change(self, verb: str, body: Json) -> Json:
        """Call a verb that takes effect once, however often it is sent."""
        return self._caller.post(f"{self._path}/{verb}", body, repeat="keyed", session=self._session)

    def _grant(self, verb: str, body: Json, wait_seconds: float) -> Json:
        """Call a verb that leases; with fewer retries, as its callers call again anyway."""
        path = f"{self._path}/{verb}"
        return self._caller.post(path, body, repeat="keyed", wait_seconds=wait_seconds, patience="short")

    def _call(self, verb: Verb[T]) -> T:
        """See `Queue._call`."""
        return carry_out(self._caller, verb, session=self._session)


class HttpQueues(Queues):
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

    def degradations(self) -> list[str]:
        """See `Queues.degradations`."""
        return cast("list[str]", self._caller.get("/readyz").get("reasons", []))

    def worker_activity(self, queue: str, *, prefix: str = "") -> list[WorkerActivity]:
        """Return the recent activity, as seen by one server, of workers whose names begin with `prefix`."""
        answer = self._caller.get(f"/v1/queues/{quoted(queue)}/workers{query_text(prefix=prefix)}")
        return wire.activities_of(answer["workers"])

    def present_workers(self) -> list["LeasingWorker"]:
        """See `Queues.present_workers`."""
        from queue_core.unit.present_workers import worker_in

        return [worker_in(one) for one in cast("list[Json]", self._caller.get("/v1/present-workers")["workers"])]

    def wait_ready(self, queues: Sequence[tuple[str, TagFilter]], *, wait_seconds: float) -> str | None:
        """See `Queues.wait_ready`."""
        check_wait_seconds(wait_seconds)
        wanted = [{"queue": name, **wire.tags_json(tags)} for name, tags in queues]
        body: Json = {"queues": wanted, "wait_seconds": wait_seconds}
        called = self._caller.post("/v1/wait", body, repeat="safe", wait_seconds=wait_seconds)
        return cast("str | None", called["queue"])

    def close(self) -> None:
        """Close the connections; calls in other threads fail."""
        self._caller.close()

    def _call(self, verb: Verb[T]) -> T:
        """See `Queues._call`."""
        return carry_out(self._caller, verb)


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
    body = wire.tags_json(tags)
    body["count"] = count
    if seconds is not None:
        body["seconds"] = seconds
    if worker:
        body["worker"] = worker
    if wait_seconds:
        body["wait_seconds"] = wait_seconds
    return body
