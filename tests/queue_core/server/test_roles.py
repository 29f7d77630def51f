"""Who may: each role its own calls and no more, foreign pages none, and how tokens are given."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_core.errors import (
    InvalidSettingError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from queue_core.server.base.options import AccessToken, ServeOptions, check_options
from queue_core.server.callers.auth import REQUIRED_ROLES
from queue_core.server.http import guesses
from queue_core.verbs.roles import Role
from tests.support.servers import QUEUE, RunningServer, a_server

TASK = b'{"tasks":[{"text":"x"}]}'
SECRETS = {role: f"{str(role.name).lower()}-0123456789abcdef" for role in Role}
TOKENS = tuple(AccessToken(role, secret) for role, secret in SECRETS.items())
CALLS = [
    ("POST", "/v1/queues/work/add", b'{"tasks":[]}', {Role.PRODUCER, Role.WORKER}),
    ("POST", "/v1/queues/work/lease", b"{}", {Role.WORKER}),
    ("POST", "/v1/queues/work/exchange", b"{}", {Role.WORKER}),
    ("POST", "/v1/queues/work/renew", b'{"tokens":[]}', {Role.WORKER}),
    ("POST", "/v1/queues/work/release", b'{"tokens":[]}', {Role.WORKER}),
    ("POST", "/v1/queues/work/delete", b"{}", {Role.WORKER}),
    ("POST", "/v1/queues/work/delete-by-name", b'{"names":[]}', set()),
    ("POST", "/v1/queues/work/purge", b"{}", set()),
    ("POST", "/v1/queues/work/pause", b"{}", {Role.OPERATOR}),
    ("POST", "/v1/queues/work/resume", b"{}", {Role.OPERATOR}),
    ("POST", "/v1/queues/work/redrive", b"{}", {Role.OPERATOR}),
    ("POST", "/v1/queues/work/peek", b"{}", {Role.VIEWER, Role.OPERATOR, Role.WORKER}),
    ("POST", "/v1/queues/work/search", b"{}", {Role.VIEWER, Role.OPERATOR, Role.WORKER}),
    ("POST", "/v1/queues/work/release-matching", b"{}", {Role.OPERATOR}),
    ("POST", "/v1/queues/work/redrive-matching", b"{}", {Role.OPERATOR}),
    ("POST", "/v1/queues/work/postpone-matching", b'{"eta":1}', {Role.OPERATOR}),
    ("POST", "/v1/queues/work/retag-matching", b'{"new_tag":"a"}', {Role.OPERATOR}),
    ("POST", "/v1/queues/work/delete-matching", b"{}", set()),
    ("POST", "/v1/queues/work/history", b"{}", {Role.VIEWER, Role.OPERATOR, Role.WORKER}),
    ("POST", "/v1/queues/work/observe", b"{}", {Role.VIEWER, Role.OPERATOR, Role.WORKER}),
    ("POST", "/v1/observe", b'{"looks":[{"queue":"work"}]}', {Role.VIEWER, Role.OPERATOR, Role.WORKER}),
    ("GET", "/v1/queues/work/stats", None, {Role.VIEWER, Role.OPERATOR, Role.PRODUCER, Role.WORKER}),
    ("GET", "/v1/queues/work/tags", None, {Role.VIEWER, Role.OPERATOR, Role.PRODUCER, Role.WORKER}),
    ("GET", "/v1/queues", None, {Role.VIEWER, Role.OPERATOR, Role.PRODUCER, Role.WORKER}),
    ("GET", "/v1/queues/work", None, {Role.VIEWER, Role.OPERATOR, Role.PRODUCER, Role.WORKER}),
    ("PUT", "/v1/queues/work", b"{}", {Role.WORKER}),
    ("POST", "/v1/workers/w/retire", b"{}", set()),
    ("POST", "/v1/workers/w/release", b"{}", set()),
    ("POST", "/v1/lead", b'{"name":"l","holder":"me","seconds":1}', set()),
    ("POST", "/v1/registrations/supervisors", b'{"name":"a","seconds":1}', set()),
    ("GET", "/v1/registrations/supervisors", None, {Role.VIEWER, Role.OPERATOR, Role.PRODUCER, Role.WORKER}),
    ("POST", "/v1/registrations/workers", b'{"name":"a","seconds":1}', {Role.WORKER}),
    ("GET", "/v1/present-workers", None, {Role.VIEWER, Role.OPERATOR, Role.PRODUCER, Role.WORKER}),
    ("POST", "/v1/wait", b'{"queues":[{"queue":"work"}]}', {Role.VIEWER, Role.OPERATOR, Role.PRODUCER, Role.WORKER}),
    ("GET", "/v1/schedules", None, {Role.VIEWER, Role.OPERATOR, Role.PRODUCER, Role.WORKER}),
    ("PUT", "/v1/schedules", b'{"schedules":[]}', set()),
    ("POST", "/v1/schedules/add-ticks", b"{}", set()),
    ("POST", "/v1/mailboxes", b'{"verb":"size","queue":"q"}', {Role.WORKER}),
    ("GET", "/v1/events", None, {Role.VIEWER, Role.OPERATOR, Role.WORKER}),
    ("GET", "/metrics", None, {Role.VIEWER, Role.OPERATOR, Role.PRODUCER, Role.WORKER}),
]


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    with pytest.MonkeyPatch.context() as patch, a_server(options=ServeOptions(tokens=TOKENS)) as running:
        patch.setattr(guesses, "FREE_GUESSES", 1_000)  # each call is made with a wrong token, too
        yield running


@pytest.mark.parametrize(("method", "path", "body", "roles"), CALLS, ids=[f"{call[0]} {call[1]}" for call in CALLS])
def test_a_role_may_do_its_own_and_no_more(
    guarded: RunningServer, method: str, path: str, body: bytes | None, roles: set[Role]
) -> None:
    json_body = ("content-type", "application/json")
    assert guarded.ask(method, path, body, headers=[json_body]).status == 401
    assert guarded.ask(method, path, body, headers=[json_body, ("authorization", "Bearer wrong")]).status == 401
    for role in Role:
        told = guarded.ask(method, path, body, headers=[json_body, ("authorization", f"Bearer {SECRETS[role]}")])
        assert told.status == (200 if role in roles | {Role.ADMIN} else 403), role


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz", "/openapi.json"])
def test_health_needs_no_token(guarded: RunningServer, path: str) -> None:
    assert guarded.ask("GET", path).status == 200


def test_every_permission_is_one_that_a_role_has() -> None:
    assert all(REQUIRED_ROLES.values())


def test_the_client_tells_no_token_from_the_wrong_one(guarded: RunningServer) -> None:
    for token, kind in ((None, UnauthenticatedError), (SECRETS[Role.VIEWER], PermissionDeniedError)):
        queue = guarded.queue(token=token)
        with pytest.raises(PermissionDeniedError) as raised:
            queue.add(b"x")
        assert type(raised.value) is kind
        queue.close()


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        pytest.param("host", "127.0.0.1:7878", 200, id="the address"),
        pytest.param("host", "LOCALHOST", 200, id="the name"),
        pytest.param("host", "[::1]:80", 200, id="the other loopback"),
        pytest.param("host", "evil.example", 421, id="a name that was made to point here"),
        pytest.param("host", "127.0.0.1.evil.example", 421, id="a name that looks like it"),
        pytest.param("host", "", 421, id="no name"),
        pytest.param("origin", "http://evil.example", 403, id="a foreign page"),
        pytest.param("origin", "null", 403, id="a page from nowhere"),
        pytest.param("origin", "http://localhost", 200, id="our own page"),
    ],
)
@pytest.mark.parametrize("verb", ["add", "purge"])
def test_foreign_pages_can_not_reach_the_loopback(
    server: RunningServer, verb: str, header: str, value: str, status: int
) -> None:
    headers = [("content-type", "application/json"), (header, value)]
    body = TASK if verb == "add" else b"{}"
    assert server.ask("POST", f"/v1/queues/{QUEUE}/{verb}", body, headers=headers).status == status


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz", "/openapi.json", "/metrics", "/v1/queues"])
@pytest.mark.parametrize(("header", "value", "status"), [("host", "evil.example", 421), ("origin", "null", 403)])
def test_no_path_answers_foreign_pages(server: RunningServer, path: str, header: str, value: str, status: int) -> None:
    assert server.ask("GET", path, headers=[(header, value)]).status == status


def test_the_network_needs_tokens() -> None:
    with pytest.raises(InvalidSettingError):
        check_options(ServeOptions(host="0.0.0.0"))
    check_options(ServeOptions(host="0.0.0.0", tokens=TOKENS))
    check_options(ServeOptions(socket_path=Path("/tmp/towline.sock")))


def test_a_token_does_not_show_its_secret() -> None:
    assert "0123456789abcdef" not in repr(AccessToken(Role.ADMIN, "0123456789abcdef", "a@x.org"))
