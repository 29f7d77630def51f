"""AppEngineEndpoint: `POST /rpc_http`, from a request's bytes to those of the response.

Every response has status 200 and App Engine's format: its clients take anything else for a broken network, which their
workers do not survive.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from queue_core.errors import QueueError, StorageLimitError, UnauthenticatedError, WorkerRetiredError
from queue_core.google.appengine import adds, messages, queues
from queue_core.google.appengine import leases as leasing
from queue_core.google.appengine.codec import CodecError, decode, encode
from queue_core.google.appengine.codes import ApplicationError, RpcCode, RpcError, TaskQueueErrorCode, code_of
from queue_core.google.appengine.fields import MAX_DETAIL_CHARACTERS, queue_or_none
from queue_core.google.appengine.queues import CallerSettings, QueueSettingsCache
from queue_core.google.appengine.schema import MessageTable, ProtoRecord
from queue_core.limits import check_worker
from queue_core.log import get_logger
from queue_core.server.base import events
from queue_core.server.base.problems import Problem
from queue_core.server.callers.access import ACCESS_OF_VERB, Check, QueueAccess, no_check
from queue_core.server.callers.auth import Authorizer, Headers, Principal, check_role
from queue_core.server.commit.group_commit import Committer
from queue_core.server.fast_path import FastRequest, Reply
from queue_core.server.leases.call import LeaseAnswer, LeaseCall
from queue_core.server.leases.rates import LeaseCounts, LeaseRate
from queue_core.server.leases.waiting import WaitingLeases
from queue_core.stats import TaskRemoval
from queue_core.task import ANY
from queue_core.unit.service import Operation
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import Granted

T = TypeVar("T")

MEDIA_TYPE = b"application/octet-stream"
SERVICE = "taskqueue"
_CLIENT = "an App Engine client"
MAX_REQUEST_BYTES = 32 << 20
"""Bytes of one request."""
SMALL_BYTES = 16 << 10
"""Bodies up to this size are not counted in `MAX_UNKNOWN_BYTES`."""
MAX_UNKNOWN_BYTES = 64 << 20
"""Bytes of all larger bodies of unauthenticated callers: these clients send their secret within the body."""
MAX_CALL_FIELDS = 1000
"""Fields of the message around a call, which is read before its caller is authenticated; clients send five."""

log = get_logger()

Prepare = Callable[[bytes], Operation[bytes]]
Read = Callable[[Operation[bytes]], Awaitable[bytes]]


class AppEngineEndpoint:
    """App Engine's task queue service over the queues of one server; runs in its event loop."""

    def __init__(
        self,
        authorizer: Authorizer,
        committer: Committer,
        waiting: WaitingLeases,
        read: Read,
        counts: LeaseCounts,
        rate: LeaseRate,
        access: QueueAccess,
    ) -> None:
        self._access = access
        self._authorizer = authorizer
        self._committer = committer
        self._waiting = waiting
        self._read = read
        self._rate = rate
        self._unauthenticated_bytes = 0
        self._settings = QueueSettingsCache()
        self._running: set[asyncio.Task[None]] = set()
        self._writes: Mapping[str, tuple[str, Prepare]] = {
            "FetchTask": ("peek", queues.fetch_task),
            "ModifyTaskLease": ("renew", leasing.modify),
            "PauseQueue": ("pause", queues.pause),
            "UpdateQueue": ("set-queue", queues.update),
        }
        self._reads: Mapping[str, tuple[str, Prepare]] = {
            "FetchQueueStats": ("stats", queues.fetch_stats(counts)),
            "QueryTasks": ("peek", queues.query_tasks),
        }
        self._multi_commit: Mapping[str, tuple[str, Callable[[FastRequest, bytes], Awaitable[bytes]]]] = {
            "Delete": ("delete", self._delete),
            "PurgeQueue": ("purge", self._purge),
            "DeleteQueue": ("set-queue", self._delete_queue),
        }

    def admit(self, verb: str, headers: Headers, body_bytes: int | None) -> int:  # noqa: ARG002 - of the protocol
        """See `FastEndpoint.admit`. A caller that sends its token as a header, too, is authenticated at once."""
        authorization = self._authorizer.check_host_and_origin(headers)
        if body_bytes is not None and body_bytes > MAX_REQUEST_BYTES:
            raise _too_large()
        if self._authorizer.accepts(authorization):
            return 0
        size_bytes = MAX_REQUEST_BYTES if body_bytes is None else body_bytes
        if size_bytes <= SMALL_BYTES:
            return 0
        if self._unauthenticated_bytes + size_bytes > MAX_UNKNOWN_BYTES:
            raise RpcError(
                RpcCode.OVER_QUOTA,
                f"unauthenticated requests hold {self._unauthenticated_bytes} bytes, {size_bytes} more exceed the "
                f"limit of {MAX_UNKNOWN_BYTES}: try again, or send the token as `Authorization: Bearer`, too",
            )
        self._unauthenticated_bytes += size_bytes
        return size_bytes

    def free(self, reserved_bytes: int) -> None:
        """See `FastEndpoint.free`."""
        self._unauthenticated_bytes -= reserved_bytes

    def start(self, request: FastRequest) -> LeaseCall | None:
        """Start the call; `request.reply` gets the response. Returns a pending lease call: see `FastVerbs.cancel`."""
        try:
            return self._begin(request)
        except Exception as error:  # noqa: BLE001 - the top of a request
            request.reply(reply_of(error))
            return None

    def refuse(self, error: Exception) -> Reply:
        """See `FastEndpoint.refuse`."""
        if isinstance(error, Problem) and error.status == 413:
            return _rpc_error(RpcCode.REQUEST_TOO_LARGE, error.detail)
        if isinstance(error, Problem) and error.status == 503:
            return _rpc_error(RpcCode.OVER_QUOTA, error.detail)
        return reply_of(error)

    def _begin(self, request: FastRequest) -> LeaseCall | None:
        if len(request.body) > MAX_REQUEST_BYTES:
            raise _too_large()
        call = decode(messages.REMOTE_REQUEST, bytes(request.body), max_fields=MAX_CALL_FIELDS)
        service, method = call.text("service_name"), call.text("method")
        payload = call.octets("request")
        if service != SERVICE:
            raise RpcError(RpcCode.CALL_NOT_FOUND, f"this server has only the service {SERVICE}, not {service[:100]}")
        if method == "QueryAndOwnTasks":
            return self._lease(request, payload, self._authorize(request, call, "lease"))
        if (adding := _ADDS.get(method)) is not None:
            caller = self._authorize(request, call, "add")
            self._submit(request, adding(self._settings_for(caller))(payload), size_bytes=len(payload))
        elif method == "FetchQueues":
            caller = self._authorize(request, call, "queues")
            visible = partial(self._access.visible, caller)
            self._reply_when_done(request, self._read(queues.fetch_queues(payload, visible)))
        elif (write := self._writes.get(method)) is not None:
            verb, prepare = write
            check = self._check(self._authorize(request, call, verb), method, verb, payload)
            self._submit(request, _checked(check, prepare(payload)), size_bytes=len(payload))
        elif (read := self._reads.get(method)) is not None:
            verb, prepare = read
            check = self._check(self._authorize(request, call, verb), method, verb, payload)
            self._reply_when_done(request, self._read(_checked(check, prepare(payload))))
        elif (multi_commit := self._multi_commit.get(method)) is not None:
            verb, work = multi_commit
            check = self._check(self._authorize(request, call, verb), method, verb, payload)
            self._reply_when_done(request, self._after(check, partial(work, request), payload))
        else:
            raise RpcError(RpcCode.CALL_NOT_FOUND, f"{SERVICE} has no call {method[:100]} for pull queues")
        return None

    def _submit(self, request: FastRequest, operation: Operation[bytes], *, size_bytes: int) -> None:
        self._committer.submit(
            _with_refusal_as_outcome(operation),
            lambda outcome: request.reply(reply_of(outcome)),
            size_bytes=size_bytes,
        )

    def _authorize(self, request: FastRequest, call: ProtoRecord, verb: str) -> Principal:
        """Return the caller by the ticket in the message, the only secret that these clients can send."""
        headers = [header for header in request.headers if header[0] != b"authorization"]
        ticket = (b"authorization", b"Bearer " + call.text("request_id").encode())
        caller = self._authorizer.caller([*headers, ticket])
        check_role(caller, verb)
        return caller

    def _check(self, caller: Principal, method: str, verb: str, payload: bytes) -> Check:
        """Return the check of the queues that a call names. Raises `CodecError`, `PermissionDeniedError`."""
        if self._access.sees_all(caller):
            return no_check
        record = decode(_REQUESTS[method], payload)
        is_many = method == "FetchQueueStats"
        given = record.all_octets("queue_name") if is_many else [record.octets("queue_name")]
        names = dict.fromkeys(map(queue_or_none, given))
        access = ACCESS_OF_VERB[verb]
        allowed = [self._access.checker(caller, name, access) for name in names if name is not None]

        def check(unit: UnitOfWork) -> None:
            for one in allowed:
                one(unit)

        return check

    def _settings_for(self, caller: Principal) -> QueueSettingsCache:
        """Return the settings of queues for a caller that adds tasks."""
        if self._access.sees_all(caller):
            return self._settings
        return CallerSettings(
            self._settings, lambda unit, queue: self._access.check_each(unit, caller, [queue], "insert")
        )

    async def _after(self, check: Check, work: Callable[[bytes], Awaitable[bytes]], payload: bytes) -> bytes:
        if check is not no_check:
            await self._read(_checked(check, lambda _unit: b""))
        return await work(payload)

    def _reply_when_done(self, request: FastRequest, work: Awaitable[bytes]) -> None:
        async def answer() -> None:
            try:
                request.reply(reply_of(await work))
            except Exception as error:  # noqa: BLE001 - the top of a request
                request.reply(reply_of(error))

        task = asyncio.get_running_loop().create_task(answer())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    # -- leases ---------------------------------------------------------------------------------------------------

    def _lease(self, request: FastRequest, payload: bytes, caller: Principal) -> LeaseCall | None:
        check = self._check(caller, "QueryAndOwnTasks", "lease", payload)
        params = leasing.lease_params(payload)
        if not isinstance(params, leasing.LeaseParams):
            refusing = _with_refusal_as_outcome(_checked(check, params))
            self._committer.submit(refusing, lambda outcome: request.reply(reply_of(outcome)))
            return None

        worker = _worker(request)

        def answer(outcome: LeaseAnswer | Exception) -> None:
            if isinstance(outcome, LeaseAnswer):
                leases = outcome.granted.leases
                request.reply(_reply(leasing.lease_response(leases)))
            elif isinstance(outcome, WorkerRetiredError):  # the client's loop would not survive any error code
                request.reply(_reply(leasing.lease_response(())))
            else:
                request.reply(reply_of(outcome))

        def grant(unit: UnitOfWork) -> Granted:
            per_second = self._settings.pull_queue(unit, params.queue).lease_calls_per_second
            if not self._rate.allows(params.queue, per_second, unit.now):
                return Granted(())
            return leasing.grant(unit, params, worker=worker)

        call = LeaseCall(
            params.queue,
            params.count,
            params.seconds,
            params.tags,
            worker,
            0.0,
            worker or request.caller,
            (),
            answer,
            request.is_gone,
            size_bytes=len(payload),
            grant=grant,
            check=check,
        )
        call.start(self._waiting.context)
        return call

    # -- calls of several transactions ----------------------------------------------------------------------------

    async def _delete(self, request: FastRequest, payload: bytes) -> bytes:
        worker = _worker(request)
        removal = TaskRemoval(f"deleted by {worker or _CLIENT}", holder=worker)
        return b"".join([await self._committer.run(operation) for operation in leasing.deletions(payload, removal)])

    async def _purge(self, _request: FastRequest, payload: bytes) -> bytes:
        queue = queues.request_of(payload)
        removal = TaskRemoval(f"purged by {_CLIENT}")
        while await self._committer.run(lambda unit: unit.purge(queue, ANY, dead="keep", removal=removal)):
            pass
        return b""

    async def _delete_queue(self, _request: FastRequest, payload: bytes) -> bytes:
        queue = queues.request_of(payload)
        answer = await self._committer.run(queues.delete(queue))
        self._access.forget(queue)
        self._settings.forget(queue)
        self._waiting.retry_queue(queue)
        return answer


_ADDS: Mapping[str, Callable[[QueueSettingsCache], Prepare]] = {"Add": adds.add, "BulkAdd": adds.bulk_add}
_REQUESTS: Mapping[str, MessageTable] = {
    "QueryAndOwnTasks": messages.LEASE_REQUEST,
    "FetchTask": messages.TASK_REQUEST,
    "ModifyTaskLease": messages.MODIFY_REQUEST,
    "PauseQueue": messages.PAUSE_REQUEST,
    "UpdateQueue": messages.UPDATE_QUEUE_REQUEST,
    "FetchQueueStats": messages.STATS_REQUEST,
    "QueryTasks": messages.TASKS_REQUEST,
    "Delete": messages.DELETE_REQUEST,
    "PurgeQueue": messages.QUEUE_REQUEST,
    "DeleteQueue": messages.QUEUE_REQUEST,
}
"""The messages that name a queue as `queue_name`, that of the statistics several."""


def _too_large() -> RpcError:
    return RpcError(RpcCode.REQUEST_TOO_LARGE, f"a request must be at most {MAX_REQUEST_BYTES} bytes")


def _checked(check: Check, operation: Operation[T]) -> Operation[T]:
    """Return an operation that begins with the check of its caller."""
    if check is no_check:
        return operation

    def run(unit: UnitOfWork) -> T:
        check(unit)
        return operation(unit)

    return run


def _with_refusal_as_outcome(operation: Operation[T]) -> Operation[T | ApplicationError]:
    """Return a refusal as the outcome instead of raising it, so that the other operations of the group commit go on."""

    def run(unit: UnitOfWork) -> T | ApplicationError:
        try:
            return operation(unit)
        except ApplicationError as refusal:
            return refusal

    return run


def _worker(request: FastRequest) -> str:
    """Return the worker's name, which `connect_appengine` has sent under a supervisor; "" for App Engine's own clients.

    Raises `InvalidTaskNameError`.
    """
    worker = next((value.decode("latin-1") for name, value in request.headers if name == b"x-towline-worker"), "")
    check_worker(worker)
    return worker


def reply_of(outcome: object) -> Reply:
    """Return the response for an outcome: a message's bytes, or an exception."""
    if isinstance(outcome, bytes):
        return _reply(outcome)
    if isinstance(outcome, ApplicationError):
        return _application_error(outcome.code, outcome.detail)
    if isinstance(outcome, StorageLimitError):
        return _rpc_error(RpcCode.OVER_QUOTA, str(outcome))
    if isinstance(outcome, UnauthenticatedError):
        return replace(_application_error(code_of(outcome), str(outcome)), is_token_refused=True)
    if isinstance(outcome, QueueError):
        return _application_error(code_of(outcome), str(outcome))
    if isinstance(outcome, RpcError):
        return _rpc_error(outcome.code, outcome.detail)
    if isinstance(outcome, CodecError):
        return _rpc_error(RpcCode.PARSE_ERROR, str(outcome))
    if isinstance(outcome, Problem):
        return _rpc_error(RpcCode.SECURITY_VIOLATION, outcome.detail)
    log.error(events.REQUEST_FAILED, exc_info=outcome)
    return _application_error(TaskQueueErrorCode.INTERNAL_ERROR, "internal error; the server's log has the details")


def _reply(response: bytes) -> Reply:
    return Reply(200, encode(messages.REMOTE_RESPONSE, {"response": response}), MEDIA_TYPE)


def _application_error(code: TaskQueueErrorCode, detail: str) -> Reply:
    error = ProtoRecord(code=int(code), detail=detail[:MAX_DETAIL_CHARACTERS])
    return Reply(200, encode(messages.REMOTE_RESPONSE, {"application_error": error}), MEDIA_TYPE)


def _rpc_error(code: RpcCode, detail: str) -> Reply:
    error = ProtoRecord(code=int(code), detail=detail[:MAX_DETAIL_CHARACTERS])
    return Reply(200, encode(messages.REMOTE_RESPONSE, {"rpc_error": error}), MEDIA_TYPE)
