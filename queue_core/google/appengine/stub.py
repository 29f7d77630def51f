"""The stub that App Engine's SDK sends its calls through. Only `connect_appengine` imports it, as it needs the SDK.

The SDK's own stub needs a flag in every thread and patches thread start to set it, which fails on newer Python. This
stub needs no flag; waiting and exceptions are the SDK's.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Literal, Protocol

import urllib3
from google.appengine.api import apiproxy_rpc, apiproxy_stub_map
from google.appengine.ext.remote_api import remote_api_bytes_pb2
from google.appengine.runtime import default_api_stub

from queue_core.process import forking

CALLS_AT_ONCE = 100
"""Concurrent calls, and so threads and connections."""
DEFAULT_DEADLINE_SECONDS = 60.0
EXTRA_SECONDS = 1.0
"""Added to the deadline, as in the SDK's own stub, so that the server can still report a late call."""

OTHER_SERVICES = (
    "app_identity_service",
    "blobstore",
    "capability_service",
    "datastore_v3",
    "images",
    "mail",
    "memcache",
    "modules",
    "search",
    "urlfetch",
    "user",
)
"""Other services of the SDK; a stub for one of them means that the process has another API host."""


class ProtoMessage(Protocol):
    """A protocol buffer."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - Google's name
        """Return the serialized message."""


class TowlineRpc(default_api_stub.DefaultApiRPC):  # type: ignore[misc]
    """One call, with the stub's ticket, from any thread."""

    stub: "TowlineStub"
    request: ProtoMessage

    def _MakeCallImpl(self) -> None:  # noqa: N802 - Google's name
        deadline_seconds = self.deadline or DEFAULT_DEADLINE_SECONDS
        call = remote_api_bytes_pb2.Request(
            service_name=self.package,
            method=self.call,
            request=self.request.SerializeToString(),
            request_id=self.stub.ticket,
        )
        self._state = apiproxy_rpc.RPC.RUNNING
        self.future = self.stub.thread_pool.submit(
            self._SendRequestAndFinish,
            method="POST",
            url=f"{self.stub.url}/rpc_http",
            timeout=deadline_seconds + EXTRA_SECONDS,
            headers=self.stub.headers | {default_api_stub.SERVICE_DEADLINE_HEADER: str(deadline_seconds)},
            body=call.SerializeToString(),
        )


class TowlineStub:
    """The stub for all calls of a process. The child of a fork gets its own connections and threads."""

    def __init__(self) -> None:
        self.renew_after_fork()
        forking.renew_after_forks(self)

    def set_server(self, url: str, ticket: str, *, worker: str) -> None:
        """Set the server, the ticket and the worker's name for later calls."""
        self.url = url
        self.ticket = ticket
        self.headers = {
            "Content-Type": default_api_stub.RPC_CONTENT_TYPE,
            default_api_stub.SERVICE_ENDPOINT_HEADER: default_api_stub.SERVICE_ENDPOINT_NAME,
            default_api_stub.SERVICE_METHOD_HEADER: default_api_stub.APIHOST_METHOD,
        }
        if worker:
            self.headers["X-Towline-Worker"] = worker
        if ticket.isascii() and ticket.isprintable():  # lets the server authorize before it reads a large body
            self.headers["Authorization"] = f"Bearer {ticket}"

    def renew_after_fork(self) -> None:
        """Drop all connections and threads."""
        self.thread_pool = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="towline-appengine")
        self.http = urllib3.PoolManager(maxsize=CALLS_AT_ONCE)

    def CreateRPC(self) -> TowlineRpc:  # noqa: N802 - Google's name
        """Return a new call."""
        return TowlineRpc(stub=self)

    def MakeSyncCall(self, service: str, call: str, request: ProtoMessage, response: ProtoMessage) -> None:  # noqa: N802
        """Make a call and wait for it."""
        rpc = self.CreateRPC()
        rpc.MakeCall(service, call, request, response)
        rpc.Wait()
        rpc.CheckSuccess()


def has_other_host() -> bool:
    """Return whether another stub is registered for a service other than the task queue."""
    stubs = (apiproxy_stub_map.apiproxy.GetStub(service) for service in OTHER_SERVICES)
    return any(stub is not None and not isinstance(stub, TowlineStub) for stub in stubs)


def register(url: str, ticket: str, *, worker: str, services: Literal["taskqueue", "all"]) -> None:
    """Redirect the SDK's task queue calls and, with `all`, calls of every service without its own stub."""
    stubs = apiproxy_stub_map.apiproxy
    known = stubs.GetStub("taskqueue")
    stub = known if isinstance(known, TowlineStub) else TowlineStub()
    stub.set_server(url, ticket, worker=worker)
    stubs.ReplaceStub("taskqueue", stub)
    if services == "all":
        stubs.SetDefaultStub(stub)
