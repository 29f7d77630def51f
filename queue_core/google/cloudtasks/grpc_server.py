"""GrpcListener: Cloud Tasks v2beta2 over gRPC, with the same methods as REST. Needs the extra `grpc`.

gRPC calls arrive in its own threads; each method runs in the server's event loop.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from urllib.parse import unquote

import grpc
from google.cloud.location import locations_pb2
from google.cloud.tasks_v2beta2.types import cloudtasks, queue, task
from google.iam.v1 import iam_policy_pb2, policy_pb2
from google.protobuf import empty_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from queue_core.clock import MICROSECONDS, SystemClock
from queue_core.errors import InvalidSettingError, ListenError
from queue_core.google.cloudtasks.call import Values
from queue_core.google.cloudtasks.failures import CloudTasksError, RpcStatus, failure_of
from queue_core.google.cloudtasks.grpc_messages import SWEEP_SECONDS, Arrivals, check_size
from queue_core.google.cloudtasks.grpc_relay import GrpcRelay
from queue_core.google.cloudtasks.messages import MESSAGES, MessageField
from queue_core.google.cloudtasks.methods import METHODS, CloudTasks, CloudTasksMethod
from queue_core.process.descriptors import file_limit, max_grpc_connections_for
from queue_core.server.base.options import GrpcOptions
from queue_core.server.callers.auth import Authorizer, Headers, Principal, check_role
from queue_core.server.http.connections import Connections
from queue_core.server.state import ServerState

NANOSECONDS_PER_MICROSECOND = 1000


def values_of(name: str, message: Message) -> Values:
    """Convert a protobuf message to the values of the message `name`; unknown fields are ignored."""
    fields = MESSAGES[name]
    return {
        descriptor.json_name: _value(fields[descriptor.json_name], value)
        for descriptor, value in message.ListFields()
        if descriptor.json_name in fields
    }


def fill(message: Message, name: str, values: Mapping[str, object]) -> None:
    """Set the fields of an empty protobuf message; values without a field are ignored."""
    fields = MESSAGES[name]
    descriptors = {descriptor.json_name: descriptor for descriptor in message.DESCRIPTOR.fields}
    for json_name, value in values.items():
        if json_name in descriptors:
            _set(message, descriptors[json_name], fields[json_name], value)


def _value(field: MessageField, value: object) -> object:
    if not field.is_repeated:
        return _one(field, value)
    return tuple(_one(field, one) for one in value)  # type: ignore[attr-defined]


def _one(field: MessageField, value: object) -> object:
    match field.kind:
        case "message":
            return values_of(field.of, value)
        case "opaque":
            return {}
        case "timestamp" | "duration":
            # Nanoseconds have the sign of a duration's seconds, or none in a timestamp: truncate to microseconds.
            return value.seconds * MICROSECONDS + int(value.nanos / NANOSECONDS_PER_MICROSECOND)  # type: ignore[attr-defined]
        case "mask":
            return tuple(value.paths)  # type: ignore[attr-defined]
    return value


def _set(message: Message, descriptor: FieldDescriptor, field: MessageField, value: object) -> None:
    target = getattr(message, descriptor.name)
    if field.is_repeated:
        assert isinstance(value, list | tuple)
        for one in value:
            if isinstance(one, dict):
                fill(target.add(), field.of, one)
            else:
                target.append(one)
    elif isinstance(value, dict):
        target.SetInParent()
        fill(target, field.of, value)
    elif field.kind in ("timestamp", "duration"):
        assert isinstance(value, int)
        target.seconds, fraction = divmod(value, MICROSECONDS)
        target.nanos = fraction * NANOSECONDS_PER_MICROSECOND
    else:
        setattr(message, descriptor.name, value)


SERVICE = "google.cloud.tasks.v2beta2.CloudTasks"
LOCATIONS = "google.cloud.location.Locations"
THREADS = 16
"""Calls that run at a time."""
MAX_CALLS = 1000
"""Calls running or waiting for a thread; further ones get RESOURCE_EXHAUSTED."""
MAX_STREAMS = 100
"""Calls of one connection at a time: each has a window of bytes in memory before it is looked at. Clients wait."""
CALL_SECONDS = 60.0
"""Longest time for one call; then it gets UNAVAILABLE."""
MAX_METADATA_BYTES = 16 << 10
"""The metadata of a call, with 32 bytes for each field. gRPC keeps this once the client has taken it up (ADR 134)."""
HANDSHAKE_MILLISECONDS = 10_000
"""Time for a connection to begin, and to take up the limits of the server."""
MAX_SLOWED_THREADS = 4
"""Threads in which the refusal of a token waits, at most."""
STOP_SECONDS = 0.5
"""Time for running calls to finish when the server stops."""

_PAYLOADS: Mapping[str, tuple[int, ...]] = {"CreateTaskRequest": (2, 4, 1), "UploadQueueYamlRequest": (2, 2)}
"""The numbers of the fields that lead to what may be long in a message."""
_MESSAGES = (cloudtasks, queue, task)
_SHARED_MODULES = (empty_pb2, iam_policy_pb2, locations_pb2, policy_pb2)
_ONLY_REST = frozenset({"BufferTask", "BatchCreateTasks", "BatchDeleteTasks", "GetCmekConfig", "UpdateCmekConfig"})
_OF_LOCATIONS = frozenset({"GetLocation", "ListLocations"})


class GrpcListener:
    """A gRPC server for `CloudTasks`, whose methods run in the event loop. Binds at once; serves after `start`."""

    def __init__(self, core: ServerState, options: GrpcOptions) -> None:
        """Bind the listener. Raises `ListenError`."""
        self._api = CloudTasks(core)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._relay = self._bind(options)
        self._arrivals = Arrivals(core.options.max_body_bytes, threads=THREADS, now=SystemClock().monotonic)
        self._sweep: asyncio.TimerHandle | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="towline-grpc")
        self._server = grpc.server(
            self._threads,
            maximum_concurrent_rpcs=MAX_CALLS,
            interceptors=(_AuthInterceptor(core.authorizer, GrpcGuesses(), self._relay.peer_of),),
            options=[
                ("grpc.max_receive_message_length", core.options.max_body_bytes),
                ("grpc.max_metadata_size", MAX_METADATA_BYTES // 2),  # from here on some calls are refused
                ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
                ("grpc.max_concurrent_streams", MAX_STREAMS),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MILLISECONDS),
                ("grpc.http2.settings_timeout", HANDSHAKE_MILLISECONDS),
            ],
        )
        names = METHODS.keys() - _ONLY_REST
        for service, methods in ((SERVICE, names - _OF_LOCATIONS), (LOCATIONS, names & _OF_LOCATIONS)):
            handlers = {name: self._handler(METHODS[name]) for name in methods}
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        try:
            self._server.add_insecure_port(f"unix:{self._relay.inner}")
        except RuntimeError as error:
            self._relay.close()
            self._threads.shutdown()
            raise ListenError(f"can't listen on {self._relay.inner} for gRPC: is TMPDIR a long path?") from error
        self.address = f"{_bracketed(options.host)}:{self._relay.port}"

    @staticmethod
    def _bind(options: GrpcOptions) -> GrpcRelay:
        try:
            return GrpcRelay(options, most=max_grpc_connections_for(file_limit()))
        except OSError as error:
            raise ListenError(
                f"can't listen on {_bracketed(options.host)}:{options.port} for gRPC: {error.strerror or error}; "
                "is another server running there? "
                "choose another port, or 0 for a free one; with TLS, check the certificate and its key"
            ) from error

    def renew(self, options: GrpcOptions) -> None:
        """Serve the certificate of these options to connections that come from now on. Raises `InvalidSettingError`."""
        if options.tls is None:
            return
        try:
            self._relay.renew(options.tls)
        except OSError as error:
            raise InvalidSettingError(f"the certificate for gRPC: {error.strerror or error}") from error

    def start(self) -> None:
        """Start serving; call it in the server's event loop."""
        self._loop = asyncio.get_running_loop()
        self._server.start()
        self._relay.start(self._loop)
        self._look_at_arrivals()

    def _look_at_arrivals(self) -> None:
        assert self._loop is not None
        self._arrivals.sweep()
        self._sweep = self._loop.call_later(SWEEP_SECONDS, self._look_at_arrivals)

    async def stop(self) -> None:
        """Let running calls finish for a moment, then stop; call it in the same loop."""
        if self._sweep is not None:
            self._sweep.cancel()
        loop = asyncio.get_running_loop()
        await self._relay.stop()
        stopped = self._server.stop(STOP_SECONDS)
        await loop.run_in_executor(None, stopped.wait, STOP_SECONDS)
        self._relay.close()  # gRPC waits for clients that don't say goodbye
        await loop.run_in_executor(None, stopped.wait)
        self._threads.shutdown(wait=False)

    def _handler(self, method: CloudTasksMethod) -> object:
        """Return a handler, as of a stream of messages: gRPC calls such a one before the first message arrives."""
        takes, gives = _class_of(method.takes), _class_of(method.gives)

        def serve(messages: Iterator[bytes], context: grpc.ServicerContext) -> Message:
            try:
                caller = self._api.core.authorizer.caller(headers_of(context.invocation_metadata()))
                check_role(caller, method.verb)
                with self._arrivals.arrived(messages, context, caller) as data:
                    check_size(data, _PAYLOADS.get(method.takes, ()))
                    return self._answer(method, _parsed(takes, data), context, caller, gives)
            except grpc.RpcError:
                raise  # the call has ended
            except Exception as error:  # noqa: BLE001 - the top of a request
                code, message = _refused_by(error)
            context.abort(code, message)
            raise AssertionError("abort raises")

        return grpc.stream_unary_rpc_method_handler(
            serve, response_serializer=lambda message: message.SerializeToString()
        )

    def _answer(
        self,
        method: CloudTasksMethod,
        request: Message,
        context: grpc.ServicerContext,
        caller: Principal,
        gives: Callable[[], Message],
    ) -> Message:
        values = values_of(method.takes, request)

        async def is_gone() -> bool:
            return not context.is_active()

        message = gives()
        fill(message, method.gives, self._in_loop(self._api.run(method, values, caller, is_gone)))
        return message

    def _in_loop(self, work: Coroutine[None, None, Values]) -> Values:
        assert self._loop is not None
        try:
            call = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise _stopping() from None
        try:
            return call.result(CALL_SECONDS)
        except TimeoutError:
            call.cancel()
            raise CloudTasksError(
                RpcStatus.UNAVAILABLE, f"no reply within {CALL_SECONDS:.0f} s; check the outcome before you retry"
            ) from None
        except CancelledError:
            raise _stopping() from None


def _refused_by(error: Exception) -> tuple[object, str]:
    """Return what a call is told of an error, which is not kept: it has the frame of the call, and that the message."""
    failure = failure_of(error)
    return getattr(grpc.StatusCode, failure.code.name), failure.message


def _parsed(takes: type[Message], data: bytes) -> Message:
    try:
        return takes.FromString(data)
    except DecodeError:
        raise CloudTasksError(RpcStatus.INTERNAL, f"this is no {takes.DESCRIPTOR.name}") from None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class _AuthInterceptor(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """An interceptor that refuses unauthenticated calls by their metadata, before the message is received.

    The refusing handler takes a stream of messages, because gRPC calls such a handler before the first message arrives.
    """

    def __init__(self, authorizer: Authorizer, guesses: "GrpcGuesses", peer_of: Callable[[str], str]) -> None:
        self._authorizer = authorizer
        self._guesses = guesses
        self._peer_of = peer_of

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """See `grpc.ServerInterceptor`."""
        try:
            self._authorizer.caller(headers_of(handler_call_details.invocation_metadata))
        except Exception as error:  # noqa: BLE001 - the top of a request
            failure = failure_of(error)
        else:
            return continuation(handler_call_details)

        is_shown = any(key == "authorization" for key, _ in handler_call_details.invocation_metadata)

        def refuse(_messages: object, context: grpc.ServicerContext) -> None:
            if is_shown and failure.code is RpcStatus.UNAUTHENTICATED:
                self._guesses.refused(self._peer_of(context.peer()))
            context.abort(getattr(grpc.StatusCode, failure.code.name), failure.message)

        return grpc.stream_unary_rpc_method_handler(refuse)


class GrpcGuesses:
    """Refused tokens at the door for gRPC: logged, and slowed as long as most threads are free. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bounds = Connections(SystemClock().monotonic)

    def refused(self, peer: str) -> None:
        """Count a refusal; returns when it is to be answered."""
        address = unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]")
        with self._lock:
            guesses = self._bounds.guesses
            seconds = guesses.refused(address)
            is_delayed = bool(seconds) and guesses.delayed <= MAX_SLOWED_THREADS
            if seconds and not is_delayed:
                guesses.answered()
        if is_delayed and seconds:
            threading.Event().wait(seconds)
            with self._lock:
                guesses.answered()


def headers_of(metadata: Iterable[tuple[str, str]]) -> Headers:
    """Return a call's metadata as headers for the authorizer. Browsers can't send gRPC, so any host is trusted."""
    given = [(key, value) for key, value in metadata if key == "authorization"]
    return [(b"host", b"localhost"), *((b"authorization", value.encode("latin-1")) for _, value in given)]


def _stopping() -> CloudTasksError:
    return CloudTasksError(RpcStatus.UNAVAILABLE, "the server is stopping; check the outcome before you retry")


def _class_of(name: str) -> type[Message]:
    """Return the protobuf class of a message; the API's own messages are unwrapped."""
    for module in _MESSAGES:
        if hasattr(module, name):
            wrapped: type[Message] = getattr(module, name).pb()
            return wrapped
    found: type[Message] = next(getattr(module, name) for module in _SHARED_MODULES if hasattr(module, name))
    return found
