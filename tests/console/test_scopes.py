"""Every route of a supervisor and every page of the console, by tokens for its own queues, other queues, all queues."""

import json
import re
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from orchestrator.http_api.rights import LISTS, OF_NO_POOL
from queue_core.console.api import quoted
from queue_core.console.pages import ACTIONS, FILES, PAGES
from queue_core.server.base.options import AccessToken
from queue_core.server.callers.auth import REQUIRED_ROLES
from queue_core.server.v1.endpoint import Endpoint
from queue_core.verbs.roles import Role
from tests.console.addresses import address_of
from tests.console.asking import ask
from tests.console.stage import (
    DEAD_TASK,
    DEAD_WORKER,
    ODD_QUEUE,
    POOL,
    QUEUE,
    SCHEDULE,
    WORKER,
    ConsoleStage,
    a_console,
)
from tests.support.servers import new_caller

SCOPES: Mapping[str, tuple[str, ...] | None] = {"own": (QUEUE,), "other": (ODD_QUEUE,), "all": None}
TOKENS = {
    (role, scope): AccessToken(role, f"{str(role.name).lower()}-{scope}-0123456789", queues=queues)
    for role in Role
    for scope, queues in SCOPES.items()
}
FLEET = "/v1/fleet"
HIDDEN = (POOL, WORKER, DEAD_WORKER, DEAD_TASK, f"queues/{QUEUE}")
"""Names that a token for another queue shows nowhere."""
OF_ALL = {"/v1/logs", "/v1/supervisor/settings", "/v1/supervisor/reload"}
WRONG = {"no such member": 1}


@pytest.fixture(scope="module")
def stage() -> Iterator[ConsoleStage]:
    with a_console(roles=(Role.ADMIN,), more_tokens=tuple(TOKENS.values())) as running:
        yield running


def routes() -> list[Endpoint]:
    with a_console() as running:
        return [route.endpoint for route in running.thread._server._extensions.routes]


ROUTES = [one for one in routes() if one.permission is not None]


def call(stage: ConsoleStage, method: str, path: str, body: object, secret: str | None) -> tuple[int, str]:
    connection = HTTPConnection(urlsplit(stage.url).netloc, timeout=30, source_address=new_caller())
    data = None if body is None else json.dumps(body)
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    try:
        connection.request(method, path, data, headers | ({"content-type": "application/json"} if data else {}))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def is_refused(endpoint: Endpoint, role: Role, scope: str) -> bool:
    if not role & REQUIRED_ROLES[endpoint.permission or ""]:
        return True
    is_list = endpoint.method == "GET" and endpoint.path in LISTS | OF_NO_POOL | {FLEET}
    is_of_pool = "{pool}" in endpoint.path or "{worker}" in endpoint.path
    return not is_list and (scope == "other" if is_of_pool else scope != "all")


@pytest.mark.parametrize("endpoint", ROUTES, ids=[f"{one.method} {one.path}" for one in ROUTES])
def test_a_call_of_a_fleet_is_for_the_role_and_the_queues_of_its_token(stage: ConsoleStage, endpoint: Endpoint) -> None:
    path = endpoint.path.format(pool=POOL, worker=DEAD_WORKER, host="this")
    body = None if endpoint.method == "GET" else WRONG
    for stranger in (None, "no-such-token-0123456789"):
        assert call(stage, endpoint.method, path, body, stranger)[0] == 401
    for (role, scope), token in TOKENS.items():
        status, text = call(stage, endpoint.method, path, body, token.secret)
        assert (status == 403) == is_refused(endpoint, role, scope), (role, scope, status, text)
        if scope == "other" and "{" not in endpoint.path:
            assert not [name for name in HIDDEN if name in text], (role, text)


def test_metrics_are_those_of_the_pools_that_a_token_is_for(stage: ConsoleStage) -> None:
    for scope, shown in (("own", {POOL}), ("other", {"quiet"}), ("all", {POOL, "quiet"})):
        text = call(stage, "GET", "/metrics", None, TOKENS[Role.VIEWER, scope].secret)[1]
        assert set(re.findall(r'pool="(\w+)"', text)) == shown
        queues = {QUEUE: "own", ODD_QUEUE: "other"}
        assert set(re.findall(r'queue="([\w-]+)"', text)) == {one for one, of in queues.items() if scope in (of, "all")}


def test_a_pool_that_is_hidden_is_refused_as_one_that_is_not_there(stage: ConsoleStage) -> None:
    secret = TOKENS[Role.VIEWER, "other"].secret
    hidden, missing = (call(stage, "GET", f"/v1/pools/{name}/why", None, secret) for name in (POOL, "nowhere"))
    assert hidden[0] == missing[0] == 403
    assert hidden[1].replace(POOL, "NAME") == missing[1].replace("nowhere", "NAME")


def session_of(stage: ConsoleStage, token: AccessToken) -> str:
    answer = ask(stage, "login", {"token": token.secret})
    assert answer.status == 303
    return answer.cookie


def is_of_queue(path: str) -> bool:
    return any(f"{{{name}" in path for name in ("queue", "pool", "worker", "task", "schedule"))


@pytest.mark.parametrize("path", [page.path for page in PAGES])
def test_a_page_shows_what_its_viewer_s_token_is_for(stage: ConsoleStage, path: str) -> None:
    address = address_of(path)
    for (role, scope), token in TOKENS.items():
        session = session_of(stage, token)
        answer = ask(stage, address, cookie=session)
        if scope != "other":
            assert answer.status in (200, 403), (role, scope, answer.text)
            continue
        if is_of_queue(path):
            assert answer.status in (403, 404), (role, answer.status)
        shown = answer.text.replace(address.partition("?")[0], "")
        links = re.findall(r'href="[^"]*"', shown)
        assert not [link for link in links if QUEUE in re.split(r"[/?&=]", link)], role
        assert not [name for name in (WORKER, DEAD_TASK) if name in shown and not is_of_queue(path)], role


@pytest.mark.parametrize("path", ACTIONS)
def test_an_order_about_another_queue_is_refused_whoever_gives_it(stage: ConsoleStage, path: str) -> None:
    counted = {"as_of": "1", "counted_at": "1"}
    forms = {
        "/pools/{pool}/scale": {"workers": "2", "minutes": "5"},
        "/queues/{queue}/matching": {"change": "redrive", **counted},
        "/queues/{queue}/dead/redrive": counted,
        "/queues/{queue}/tasks/{task}/postpone": {"for": "10m"},
    }
    query = "?error=ValueError" if path == "/queues/{queue}/dead/redrive" else ""
    for role in Role:
        session = session_of(stage, TOKENS[role, "other"])
        answer = ask(stage, address_of(path) + query, forms.get(path, {}), cookie=session)
        assert answer.status in (403, 404), (role, answer.text[-500:])
    queue = stage.queues.queue(QUEUE)
    assert not queue.stats().paused
    assert [one.name for one in queue.peek(names=[DEAD_TASK]).tasks] == [DEAD_TASK]
    assert stage.files.read_overrides() == {}
    assert not stage.files.is_drained()


@pytest.mark.parametrize("path", FILES)
def test_a_file_of_another_queue_is_refused(stage: ConsoleStage, path: str) -> None:
    for role in Role:
        assert ask(stage, address_of(path), cookie=session_of(stage, TOKENS[role, "other"])).status in (403, 404)


def test_a_live_page_is_not_shared_between_tokens_of_one_role_and_different_queues(stage: ConsoleStage) -> None:
    texts = []
    for scope in ("all", "other"):
        connection = HTTPConnection(urlsplit(stage.url).netloc, timeout=30, source_address=new_caller())
        headers = {"cookie": session_of(stage, TOKENS[Role.VIEWER, scope])}
        try:
            connection.request("GET", "/console/live/queues", headers=headers)
            stream, text = connection.getresponse(), ""
            while "event: page" not in text or not text.endswith("\n\n"):
                text += stream.read1(65_536).decode()
        finally:
            connection.close()
        texts.append(text)
    assert [f"queues/{QUEUE}" in one for one in texts] == [True, False]
    assert quoted(SCHEDULE) not in texts[1]
