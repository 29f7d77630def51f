"""Pools are shown by the acls of their queues, as they are at the queues' own doors."""

from contextlib import ExitStack, closing

import pytest

from orchestrator.http_api.fleet_now import OwnQueues
from orchestrator.http_api.paths import fleet_paths
from orchestrator.http_api.rights import FleetRights
from queue_core.client.http_calls import HttpQueues
from queue_core.errors import PermissionDeniedError, StoreUnavailableError
from queue_core.server.callers.auth import Principal
from queue_core.server.v1.endpoint import Endpoint
from queue_core.task import QueueSpec
from queue_core.verbs.roles import Role
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.fleet_views import a_heartbeat, a_running_pool, a_view
from tests.support.servers import a_server

ANN, BOB = Principal(Role.VIEWER, "ann@example.com"), Principal(Role.VIEWER, "bob@example.com")


def endpoint_of(path: str, method: str = "GET") -> Endpoint:
    heartbeat, clock = a_heartbeat()
    routes = fleet_paths(heartbeat, clock).routes
    return next(one.endpoint for one in routes if (one.endpoint.path, one.endpoint.method) == (path, method))


def test_a_pool_of_a_queue_with_an_acl_is_shown_to_those_whom_it_names() -> None:
    with ExitStack() as stack:
        spec = QueueSpec("thumbs", user_emails=("ann@example.com",))
        server = stack.enter_context(a_server(spec=spec))
        queues = OwnQueues()
        queues.locate(server.url, token=None)
        stack.callback(queues.close)
        heartbeat, clock = a_heartbeat(a_view(a_running_pool(a_pool("resize", queue="thumbs"))))
        rights = FleetRights(heartbeat, clock, None, queues)
        stats = endpoint_of("/v1/pools/{pool}/stats")
        rights.check(ANN, stats, {"pool": "resize"})
        for caller in (BOB, Principal(Role.VIEWER)):
            with pytest.raises(PermissionDeniedError):
                rights.check(caller, stats, {"pool": "resize"})
        stack.enter_context(closing(HttpQueues(server.url))).put_queue(QueueSpec("thumbs"))
        clock.advance(1.0)
        rights.check(BOB, stats, {"pool": "resize"})


def test_nobody_is_shown_a_pool_while_acls_were_never_read() -> None:
    heartbeat, clock = a_heartbeat(a_view(a_running_pool(a_pool("resize", queue="thumbs"))))
    rights = FleetRights(heartbeat, clock, None, OwnQueues())
    with pytest.raises(StoreUnavailableError):
        rights.check(ANN, endpoint_of("/v1/pools/{pool}/stats"), {"pool": "resize"})
    assert rights.is_unbounded(Principal(Role.ADMIN))
