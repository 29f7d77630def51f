"""The object that App Engine's SDK sends its calls through. Imported by `connect_appengine` only: it needs the SDK.

The SDK's own stub wants a flag set in every thread, and patches the start of threads to have it set, which newer
releases of Python do not notice. This one asks for no flag; how it waits, and which exceptions it raises, is the SDK's.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Literal, Protocol

import urllib3
from google.appengine.api import apiproxy_rpc, apiproxy_stub_map
from google.appengine.ext.remote_api import remote_api_bytes_pb2
from google.appengine.runtime import default_api_stub

from queue_core.process import forking

CALLS_AT_ONCE = 100
DEFAULT_DEADLINE_SECONDS = 60.0
EXTRA_SECONDS = 1.0
"""After the deadline, as the SDK's own stub: the server may be about to say that it was too late."""


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
"""Services of the SDK that an application has a host for, if it has one."""


class ProtoMessage(Protocol):
    """A protocol buffer."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - Google's name
        """Its bytes."""


class TowlineRpc(default_api_stub.DefaultApiRPC):  # type: ignore[misc]
    """One call, with the stub's ticket whatever the thread."""

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
    """All calls of a process. A fork gets connections and threads of its own."""

    def __init__(self) -> None:
        self.renew_after_fork()
        forking.renew_after_forks(self)

    def set_server(self, url: str, ticket: str, *, worker: str) -> None:
        """Where calls go from now on, and as whose."""
        self.url = url
        self.ticket = ticket
        self.headers = {
            "Content-Type": default_api_stub.RPC_CONTENT_TYPE,
            default_api_stub.SERVICE_ENDPOINT_HEADER: default_api_stub.SERVICE_ENDPOINT_NAME,
            default_api_stub.SERVICE_METHOD_HEADER: default_api_stub.APIHOST_METHOD,
        }
        if worker:
            self.headers["X-Towline-Worker"] = worker
        if ticket.isascii() and ticket.isprintable():  # known by its head, before a large body is read
            self.headers["Authorization"] = f"Bearer {ticket}"

    def renew_after_fork(self) -> None:
        """Begin anew with no connection and no thread."""
        self.thread_pool = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="towline-appengine")
        self.http = urllib3.PoolManager(maxsize=CALLS_AT_ONCE)

    def CreateRPC(self) -> TowlineRpc:  # noqa: N802 - Google's name
        """A call that is yet to be made."""
        return TowlineRpc(stub=self)

    def MakeSyncCall(self, service: str, call: str, request: ProtoMessage, response: ProtoMessage) -> None:  # noqa: N802
        """A call, made and waited for."""
        rpc = self.CreateRPC()
        rpc.MakeCall(service, call, request, response)
        rpc.Wait()
        rpc.CheckSuccess()


def has_other_host() -> bool:
    """Whether anything but this module is registered for a service beside the task queue."""
    stubs = (apiproxy_stub_map.apiproxy.GetStub(service) for service in OTHER_SERVICES)
    return any(stub is not None and not isinstance(stub, TowlineStub) for stub in stubs)


def register(url: str, ticket: str, *, worker: str, services: Literal["taskqueue", "all"]) -> None:
    """Take the SDK's calls from now on: those of the task queue whatever else is registered, and with `all` those of
    every service that has no stub of its own."""
    stubs = apiproxy_stub_map.apiproxy
    known = stubs.GetStub("taskqueue")
    stub = known if isinstance(known, TowlineStub) else TowlineStub()
    stub.set_server(url, ticket, worker=worker)
    stubs.ReplaceStub("taskqueue", stub)
    if services == "all":
        stubs.SetDefaultStub(stub)
