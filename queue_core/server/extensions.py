"""Read-only routes that another part of the program serves beside the queues: at the same listener, with the same
tokens.

Their answers are made in the server's loop: they must be at hand, and never wait.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client.registry import Collector
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queue_core.server.auth import Authorizer
from queue_core.server.endpoints import Endpoint
from queue_core.server.fast_path import Reply, reply_of
from queue_core.server.schemas import response


@dataclass(frozen=True, slots=True)
class ReadOnlyRoute:
    """One path.

    Args:
        name: the operation's id in the OpenAPI document.
        permission: a verb of `auth.REQUIRED_ROLES`, or None for everybody.
        read: returns the answer, from the names in the path. Raises `Problem`.
        answers: the answer's model.
        aliases: further paths of the same, which the document leaves out.
    """

    path: str
    name: str
    summary: str
    permission: str | None
    read: Callable[[Mapping[str, str]], BaseModel]
    answers: type[BaseModel]
    aliases: tuple[str, ...] = ()

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint in the OpenAPI document."""
        answers = response(self.answers)
        return Endpoint("GET", self.path, self.summary, self.permission, None, None, answers, operation=self.name)

    def starlette_routes(self, authorizer: Authorizer) -> list[Route]:
        """Return its paths as Starlette routes."""

        async def view(request: Request) -> Response:
            try:
                if self.permission is None:
                    authorizer.check_host_and_origin(request.headers.raw)
                else:
                    authorizer.check(request.headers.raw, self.permission)
                path = {key: str(value) for key, value in request.path_params.items()}
                return response_of(Reply(200, self.read(path).model_dump_json().encode()))
            except Exception as error:  # noqa: BLE001 - the top of a request
                return response_of(reply_of(error))

        return [Route(path, view, methods=["GET"]) for path in (self.path, *self.aliases)]


@dataclass(frozen=True, slots=True)
class Extensions:
    """Routes beside the queues, and collectors for `/metrics`."""

    routes: tuple[ReadOnlyRoute, ...] = ()
    collectors: tuple[Collector, ...] = ()


NO_EXTENSIONS = Extensions()


def response_of(reply: Reply) -> Response:
    """Return a reply as a Starlette response."""
    headers = {name.decode(): value.decode() for name, value in reply.headers}
    return Response(reply.body, reply.status, headers, media_type=reply.media_type.decode())
