"""An endpoint: path, request, response, permission and handler of one method of one path."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from queue_core.server import schemas
from queue_core.server.fast_path import MAX_PLAIN_BODY_BYTES
from queue_core.server.schemas import Response
from queue_core.server.state import ServerState
from queue_core.server.v1.handlers import EndpointCall
from queue_core.verbs.wire import Json

Handler = Callable[[ServerState, EndpointCall], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query string."""

    name: str
    schema: Json
    description: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path.

    Args:
        permission: a verb of `auth.REQUIRED_ROLES`, or None for everybody.
        handler: None for the verbs of the fast path, and for `extensions.ReadOnlyRoute`.
        operation: the operation's id, where neither handler nor path names it.
        max_body_bytes: size of a body, where it is no verb of the fast path.
    """

    method: str
    path: str
    summary: str
    permission: str | None
    handler: Handler | None
    takes: type[schemas.RequestBody] | None
    answers: Response
    query: tuple[Parameter, ...] = ()
    operation: str = ""
    max_body_bytes: int = MAX_PLAIN_BODY_BYTES

    @property
    def name(self) -> str:
        """The operation's id: the handler's name, or the verb's."""
        return self.operation or (self.handler.__name__ if self.handler else self.path.rpartition("/")[2])
