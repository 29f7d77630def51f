"""GoogleWing: what Google's clients call, registered at a server."""

from collections.abc import Sequence

from starlette.routing import BaseRoute

from queue_core.google import appengine
from queue_core.google.appengine.endpoint import AppEngineEndpoint
from queue_core.google.cloudtasks.routes import routes as cloudtasks_routes
from queue_core.google.taskqueue.routes import routes as taskqueue_routes
from queue_core.server.state import ServerState
from queue_core.server.wings import GrpcService, Wing


class GoogleWing(Wing):
    """App Engine's API on the fast path, Cloud Tasks over HTTP and gRPC, and the Task Queue API."""

    def __init__(self, core: ServerState) -> None:
        self._core = core
        self.fast = {
            appengine.PATH: AppEngineEndpoint(
                core.authorizer,
                core.committer,
                core.waiting,
                core.read,
                core.lease_counts,
                core.lease_rate,
                core.access,
            )
        }

    def routes(self) -> Sequence[BaseRoute]:
        """See `Wing.routes`."""
        return [*cloudtasks_routes(self._core), *taskqueue_routes(self._core)]

    def grpc_service(self) -> GrpcService | None:
        """See `Wing.grpc_service`."""
        options = self._core.options.grpc
        if options is None:
            return None
        from queue_core.google.cloudtasks.grpc_server import GrpcListener

        return GrpcListener(self._core, options)
