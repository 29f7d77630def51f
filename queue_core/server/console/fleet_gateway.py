"""The fleet's pages of the API at a server without a supervisor: read from the listener of the one that leads.

The supervisor registered itself at the store. The caller's own token goes with the call, and only to a listener on this
machine whose process lives: a registration names an address, and nobody typed it (ADR 97).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queue_core.client.http.caller import HttpCaller, Retries
from queue_core.client.http.fleet_paths import ORDERS, READS, SUPERVISORS
from queue_core.client.http.transport import HttpResponse
from queue_core.errors import QueueError
from queue_core.server.base.problems import MEDIA_TYPE, Problem, refusal
from queue_core.server.console.proxy import token_elsewhere
from queue_core.server.extensions import response_of
from queue_core.server.fast_path import Reply, reply_of
from queue_core.server.state import ServerState
from queue_core.unit.registration_verbs import registrations
from queue_core.unit.supervisors import (
    KIND,
    RegisteredSupervisor,
    is_alive_here,
    is_within_reach,
    leader_among,
    supervisor_in,
    supervisor_json,
)
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs.registration import Registration

CALL_SECONDS: Final = 3.0
"""Timeout of one call to the supervisor: a person waits."""
LOOK_SECONDS: Final = 1.0
"""For so long the supervisors that are known answer everybody."""
MAX_CALLS: Final = 20
"""Calls to the supervisor that are under way, at most: each takes a thread."""
MAX_STRANGERS: Final = 4
"""Of those, the calls of callers without a token, at most."""
MAX_CALLERS: Final = 50
"""Tokens whose connections to the supervisor are kept, at most."""
FORWARDED: Final = "towline-forwarded"
"""The header of a call that was passed on once; it is not passed on again."""
HOSTS_ONLY: Final = "This server hosts the queues only."
NOT_ALIVE: Final = "does not answer: its process is not found on this machine, so your token was not sent there."
NO_SUPERVISOR: Final = "No supervisor runs for this store: `towline up` or `towline supervise` starts one."


class FleetGateway:
    """The fleet's paths of one server. Lives in its loop."""

    def __init__(self, core: ServerState) -> None:
        self._core = core
        self._token_there = token_elsewhere(core.authorizer)
        self._known: list[Registration] = []
        self._known_at = float("-inf")
        self._callers: OrderedDict[tuple[str, str | None], HttpCaller] = OrderedDict()
        self._calls = 0
        self._strangers = 0

    @property
    def paths(self) -> list[str]:
        """Return the paths that are read here."""
        return [SUPERVISORS, *READS]

    def routes(self) -> list[Route]:
        """Return the routes; those of orders say where the supervisor is."""
        found = [Route(SUPERVISORS, self._list, methods=["GET"])]
        for path in dict.fromkeys([*READS, *ORDERS]):
            methods = [*(["GET"] if path in READS else []), *(["POST"] if path in ORDERS else [])]
            whole = path.replace("{worker}", "{worker:path}")  # a worker's name may contain a "/"
            found.append(Route(whole, self._view(path), methods=methods))
        return found

    def close(self) -> None:
        """Close the connections to supervisors."""
        for caller in self._callers.values():
            caller.close()
        self._callers.clear()

    async def _list(self, request: Request) -> Response:
        try:
            self._core.authorizer.check(request.headers.raw, "stats")
            found = await self._supervisors()
            leader = leader_among(found)
            rows = [
                supervisor_json(one, leads=leader is not None and one.name == leader.name, is_this=False)
                for one in map(supervisor_in, found)
            ]
            if self._core.authorizer.caller(request.headers.raw).queues is not None:
                rows = [{**one, "pools": []} for one in rows]  # which of them are of its queues is not known here
            return response_of(Reply(200, to_json({"supervisors": rows})))
        except Exception as error:  # noqa: BLE001 - the top of a request
            return response_of(reply_of(error))

    def _view(self, path: str) -> Callable[[Request], Awaitable[Response]]:
        async def view(request: Request) -> Response:
            try:
                return await self._answer(request, path)
            except Exception as error:  # noqa: BLE001 - the top of a request
                return response_of(reply_of(error))

        return view

    async def _answer(self, request: Request, path: str) -> Response:
        permission = "stats" if request.method == "POST" else READS[path]
        token = self._admitted(request, permission)
        leader = leader_among(await self._supervisors())
        if leader is None:
            raise refusal(404, "no-supervisor", NO_SUPERVISOR)
        if request.method == "POST":
            raise elsewhere(leader, f"{HOSTS_ONLY} Orders go to the supervisor {leader.place}.")
        if "follow" in request.query_params:
            raise elsewhere(leader, f"{HOSTS_ONLY} Streams are followed at the supervisor, {leader.place}.")
        if not is_within_reach(leader) or FORWARDED in request.headers:
            raise elsewhere(leader, f"{HOSTS_ONLY} The supervisor runs {leader.place}.")
        if not is_alive_here(leader):
            raise refusal(503, "supervisor-silent", f"{HOSTS_ONLY} The supervisor {leader.place} {NOT_ALIVE}")
        raw = request.scope.get("raw_path") or request.url.path.encode()
        target = raw.partition(b"?")[0].decode("latin-1")
        query = request.url.query
        found = await self._read(
            leader, f"{target}?{query}" if query else target, token, is_stranger=permission is None
        )
        if found.status == 401:
            raise elsewhere(leader, f"The supervisor {leader.place} does not know this token.")
        media_type = "application/json" if found.status < 400 else MEDIA_TYPE.decode()
        return Response(found.body, found.status, media_type=media_type)

    def _admitted(self, request: Request, permission: str | None) -> str | None:
        """Return the token with which the supervisor is called; raises what the caller is refused with."""
        headers, authorizer = request.headers.raw, self._core.authorizer
        if permission is None:
            authorizer.check_host_and_origin(headers)
            return None
        authorizer.check(headers, permission)
        value = request.headers.get("authorization", "")
        token = value[7:].strip() if value[:7].lower() == "bearer " else None
        return self._token_there(token)

    async def _supervisors(self) -> list[Registration]:
        now = self._core.service.clock.monotonic()
        if not 0 <= now - self._known_at < LOOK_SECONDS:
            self._known = await self._core.read(_registered)
            self._known_at = now
        return self._known

    async def _read(
        self, leader: RegisteredSupervisor, path: str, token: str | None, *, is_stranger: bool
    ) -> HttpResponse:
        if self._calls >= MAX_CALLS or (is_stranger and self._strangers >= MAX_STRANGERS):
            raise refusal(503, "too-many-calls", "too many calls to the supervisor are under way; try again")
        caller = self._caller(leader.url, token)
        self._calls += 1
        self._strangers += is_stranger
        try:
            return await asyncio.to_thread(caller.request, "GET", path, None, repeat="safe")
        except QueueError as error:
            raise refusal(
                503, "supervisor-silent", f"{HOSTS_ONLY} The supervisor {leader.place} does not answer: {error}"
            ) from error
        finally:
            self._calls -= 1
            self._strangers -= is_stranger

    def _caller(self, url: str, token: str | None) -> HttpCaller:
        found = self._callers.get((url, token))
        if found is None:
            retries = Retries(tries=1, timeouts=1)
            headers = {FORWARDED: "1"}
            found = HttpCaller(url, token=token, retries=retries, timeout_seconds=CALL_SECONDS, headers=headers)
            self._callers[url, token] = found
        self._callers.move_to_end((url, token))
        if len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)  # not closed: a call may be under way
        return found


def elsewhere(leader: RegisteredSupervisor, detail: str) -> Problem:
    """Return the refusal of what only the supervisor itself can answer; its members say where that is."""
    found = refusal(404, "supervisor-elsewhere", detail)
    return Problem(found.status, found.detail, found.type, found.headers, {"url": leader.url, "host": leader.host})


def _registered(work: UnitOfWork) -> list[Registration]:
    return registrations(work, KIND)
