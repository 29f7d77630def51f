"""`POST /rpc_http` from a request's bytes to an answer's. Whatever happens, the answer is App Engine's own, with 200:
its clients take anything else for a broken network, which their workers do not survive."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import structlog

from queue_core.errors import QueueError, StorageLimitError, WorkerRetiredError
from queue_core.limits import check_worker
from queue_core.server import events
from queue_core.server.appengine import adding, leasing, messages, queues
from queue_core.server.appengine.codec import CodecError, decode, encode
from queue_core.server.appengine.codes import ApplicationError, RpcCode, RpcError, TaskQueueErrorCode, code_of
from queue_core.server.appengine.fields import MAX_DETAIL_CHARACTERS
from queue_core.server.appengine.modes import KnownQueues
from queue_core.server.appengine.schema import ProtoRecord
from queue_core.server.auth import Authorizer, Headers
from queue_core.server.commit.group_commit import Committer
from queue_core.server.fast_path import FastRequest, Reply
from queue_core.server.leases.call import LeaseAnswer, LeaseCall
from queue_core.server.leases.rates import LeaseCounts, LeaseRate
from queue_core.server.leases.waiting import WaitingLeases
from queue_core.server.problems import Problem
from queue_core.service import Operation
from queue_core.store import Granted
from queue_core.task import ANY
from queue_core.unit_of_work import UnitOfWork

T = TypeVar("T")

MEDIA_TYPE = b"application/octet-stream"
SERVICE = "taskqueue"
MAX_REQUEST_BYTES = 32 << 20
SMALL_BYTES = 16 << 10
MAX_UNKNOWN_BYTES = 64 << 20
"""Of all bodies larger than that whose callers are not known yet: these clients send their secret behind the body."""
MAX_CALL_FIELDS = 1000
"""Of the message around a call, which is read before its caller is known; clients send five."""

log = structlog.get_logger()

Prepare = Callable[[bytes], Operation[bytes]]
Look = Callable[[Operation[bytes]], Awaitable[bytes]]


class AppEngineEndpoint:
    """The task queue service of App Engine over the queues of one server. Lives in its loop."""

    def __init__(
        self,
        gate: Authorizer,
        turns: Committer,
        waiting: WaitingLeases,
        look: Look,
        counts: LeaseCounts,
        rate: LeaseRate,
    ) -> None:
        self._gate = gate
        self._turns = turns
        self._waiting = waiting
        self._look = look
        self._rate = rate
        self._held_bytes = 0
        self._known = KnownQueues()
        self._under_way: set[asyncio.Task[None]] = set()
        self._changes: Mapping[str, tuple[str, Prepare]] = {
            "Add": ("add", adding.add(self._known)),
            "BulkAdd": ("add", adding.bulk_add(self._known)),
            "FetchTask": ("peek", queues.fetch_task),
            "ModifyTaskLease": ("renew", leasing.modify),
            "PauseQueue": ("pause", queues.pause),
            "UpdateQueue": ("set-queue", queues.update),
        }
        self._looks: Mapping[str, tuple[str, Prepare]] = {
            "FetchQueueStats": ("stats", queues.fetch_stats(counts)),
            "FetchQueues": ("queues", queues.fetch_queues),
            "QueryTasks": ("peek", queues.query_tasks),
        }
        self._long: Mapping[str, tuple[str, Callable[[bytes], Awaitable[bytes]]]] = {
            "Delete": ("delete", self._delete),
            "PurgeQueue": ("purge", self._purge),
            "DeleteQueue": ("set-queue", self._delete_queue),
        }

    def admit(self, verb: str, headers: Headers, body_bytes: int | None) -> int:  # noqa: ARG002 - a door's
        """See `Door.admit`. A caller that sends its token as a header too is known at once."""
        authorization = self._gate.check_host_and_origin(headers)
        if body_bytes is not None and body_bytes > MAX_REQUEST_BYTES:
            raise _too_large()
        if self._gate.accepts(authorization):
            return 0
        held = MAX_REQUEST_BYTES if body_bytes is None else body_bytes
        if held <= SMALL_BYTES:
            return 0
        if self._held_bytes + held > MAX_UNKNOWN_BYTES:
            raise RpcError(
                RpcCode.OVER_QUOTA,
                f"requests of unknown callers hold {self._held_bytes} bytes, and {held} more are over the limit of "
                f"{MAX_UNKNOWN_BYTES}: try again, or send the token as `Authorization: Bearer` too",
            )
        self._held_bytes += held
        return held

    def free(self, reserved_bytes: int) -> None:
        """See `FastEndpoint.free`."""
        self._held_bytes -= reserved_bytes

    def start(self, request: FastRequest) -> LeaseCall | None:
        """Begin; `request.reply` is told when it is done. A lease under way is returned: see `FastVerbs.cancel`."""
        try:
            return self._begin(request)
        except Exception as error:  # noqa: BLE001 - the top of a request
            request.reply(reply_of(error))
            return None

    def refuse(self, error: Exception) -> Reply:
        """See `Door.refuse`."""
        if isinstance(error, Problem) and error.status == 413:
            return _rpc_error(RpcCode.REQUEST_TOO_LARGE, error.detail)
        return reply_of(error)

    def _begin(self, request: FastRequest) -> LeaseCall | None:
        if len(request.body) > MAX_REQUEST_BYTES:
            raise _too_large()
        call = decode(messages.REMOTE_REQUEST, request.body, max_fields=MAX_CALL_FIELDS)
        service, method = call.text("service_name"), call.text("method")
        payload = call.octets("request")
        if service != SERVICE:
            raise RpcError(RpcCode.CALL_NOT_FOUND, f"this server is {SERVICE} alone, not {service[:100]}")
        if method == "QueryAndOwnTasks":
            self._let_in(request, call, "lease")
            return self._lease(request, payload)
        if (change := self._changes.get(method)) is not None:
            verb, prepare = change
            self._let_in(request, call, verb)
            self._turns.submit(
                _telling(prepare(payload)), lambda outcome: request.reply(reply_of(outcome)), size_bytes=len(payload)
            )
        elif (look := self._looks.get(method)) is not None:
            verb, prepare = look
            self._let_in(request, call, verb)
            self._go_on(request, self._look(prepare(payload)))
        elif (long := self._long.get(method)) is not None:
            verb, work = long
            self._let_in(request, call, verb)
            self._go_on(request, work(payload))
        else:
            raise RpcError(RpcCode.CALL_NOT_FOUND, f"{SERVICE} has no call {method[:100]} for pull queues")
        return None

    def _let_in(self, request: FastRequest, call: ProtoRecord, verb: str) -> None:
        """The ticket is what others send as `Authorization: Bearer`; it is the only secret these clients can carry."""
        headers = [header for header in request.headers if header[0] != b"authorization"]
        self._gate.check([*headers, (b"authorization", b"Bearer " + call.text("request_id").encode())], verb)

    def _go_on(self, request: FastRequest, work: Awaitable[bytes]) -> None:
        async def answer() -> None:
            try:
                request.reply(reply_of(await work))
            except Exception as error:  # noqa: BLE001 - the top of a request
                request.reply(reply_of(error))

        task = asyncio.get_running_loop().create_task(answer())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    # -- leases ---------------------------------------------------------------------------------------------------

    def _lease(self, request: FastRequest, payload: bytes) -> LeaseCall | None:
        wish = leasing.lease_wish(payload)
        if not isinstance(wish, leasing.LeaseParams):
            self._turns.submit(_telling(wish), lambda outcome: request.reply(reply_of(outcome)))
            return None

        worker = _worker(request)

        def answer(outcome: LeaseAnswer | Exception) -> None:
            if isinstance(outcome, LeaseAnswer):
                leases = outcome.granted.leases
                request.reply(_reply(leasing.lease_response(leases)))
            elif isinstance(outcome, WorkerRetiredError):  # there is no code that its loop would survive
                request.reply(_reply(leasing.lease_response(())))
            else:
                request.reply(reply_of(outcome))

        def grant(turn: UnitOfWork) -> Granted:
            per_second = self._known.pull_queue(turn, wish.queue).lease_calls_per_second
            if not self._rate.allows(wish.queue, per_second, turn.now):
                return Granted(())
            return leasing.grant(turn, wish, worker=worker)

        call = LeaseCall(
            wish.queue,
            wish.count,
            wish.seconds,
            wish.tags,
            worker,
            0.0,
            worker or request.caller,
            (),
            answer,
            request.is_gone,
            size_bytes=len(payload),
            grant=grant,
        )
        self._waiting.start(call)
        return call

    # -- what takes several turns ---------------------------------------------------------------------------------

    async def _delete(self, payload: bytes) -> bytes:
        return b"".join([await self._turns.run(step) for step in leasing.deletions(payload)])

    async def _purge(self, payload: bytes) -> bytes:
        queue = queues.request_of(payload)
        while await self._turns.run(lambda turn: turn.purge(queue, ANY, dead="keep")):
            pass
        return b""

    async def _delete_queue(self, payload: bytes) -> bytes:
        queue = queues.request_of(payload)
        answer = await self._turns.run(queues.delete(queue))
        self._known.forget(queue)
        self._waiting.retry_queue(queue)
        return answer


def _too_large() -> RpcError:
    return RpcError(RpcCode.REQUEST_TOO_LARGE, f"a request must be at most {MAX_REQUEST_BYTES} bytes")


def _telling(step: Operation[T]) -> Operation[T | ApplicationError]:
    """The step, with a refusal as its outcome: nothing was changed, and the turn it shares with others goes on."""

    def tell(turn: UnitOfWork) -> T | ApplicationError:
        try:
            return step(turn)
        except ApplicationError as refusal:
            return refusal

    return tell


def _worker(request: FastRequest) -> str:
    """Who calls, where `queue_core.appengine.connect.connect` was told so by a supervisor; App Engine's own clients
    have no name. Raises `InvalidTaskNameError`."""
    worker = next((value.decode("latin-1") for name, value in request.headers if name == b"x-towline-worker"), "")
    check_worker(worker)
    return worker


def reply_of(outcome: object) -> Reply:
    """The answer that an outcome is: a message's bytes, or an error's code."""
    if isinstance(outcome, bytes):
        return _reply(outcome)
    if isinstance(outcome, ApplicationError):
        return _application_error(outcome.code, outcome.detail)
    if isinstance(outcome, StorageLimitError):
        return _rpc_error(RpcCode.OVER_QUOTA, str(outcome))
    if isinstance(outcome, QueueError):
        return _application_error(code_of(outcome), str(outcome))
    if isinstance(outcome, RpcError):
        return _rpc_error(outcome.code, outcome.detail)
    if isinstance(outcome, CodecError):
        return _rpc_error(RpcCode.PARSE_ERROR, str(outcome))
    if isinstance(outcome, Problem):
        return _rpc_error(RpcCode.SECURITY_VIOLATION, outcome.detail)
    log.error(events.REQUEST_FAILED, exc_info=outcome)
    return _application_error(TaskQueueErrorCode.INTERNAL_ERROR, "the server made a mistake; its log has the details")


def _reply(response: bytes) -> Reply:
    return Reply(200, encode(messages.REMOTE_RESPONSE, {"response": response}), MEDIA_TYPE)


def _application_error(code: TaskQueueErrorCode, detail: str) -> Reply:
    error = ProtoRecord(code=int(code), detail=detail[:MAX_DETAIL_CHARACTERS])
    return Reply(200, encode(messages.REMOTE_RESPONSE, {"application_error": error}), MEDIA_TYPE)


def _rpc_error(code: RpcCode, detail: str) -> Reply:
    error = ProtoRecord(code=int(code), detail=detail[:MAX_DETAIL_CHARACTERS])
    return Reply(200, encode(messages.REMOTE_RESPONSE, {"rpc_error": error}), MEDIA_TYPE)
