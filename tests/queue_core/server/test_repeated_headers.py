"""A header of which one counts is given once: with two, nobody knows which was meant."""

import pytest

from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.verbs.roles import Role
from tests.support.servers import QUEUE, RunningServer, a_server, read_reply, request

ADMIN = AccessToken(Role.ADMIN, "admin-secret-0123456789")
JSON = ("content-type", "application/json")
TWICE = {
    "Authorization": ("Bearer wrong-secret-0123456789", f"Bearer {ADMIN.secret}"),
    "Content-Type": ("text/plain", "application/json"),
    "Content-Length": ("2", "2"),
    "Host": ("localhost", "localhost"),
    "Idempotency-Key": ("a/1/0", "a/2/0"),
    "Origin": ("http://localhost", "http://localhost"),
}
PATHS = {
    "fast path": ("POST", f"/v1/queues/{QUEUE}/lease"),
    "regular path": ("POST", f"/v1/queues/{QUEUE}/pause"),
    "Google's path": ("POST", "/rpc_http"),
    "console": ("POST", "/console/login"),
    "no such path": ("GET", "/nowhere"),
}


@pytest.mark.parametrize("name", list(TWICE))
@pytest.mark.parametrize("path", list(PATHS))
def test_a_header_that_is_given_twice_is_refused(name: str, path: str) -> None:
    method, address = PATHS[path]
    others = [JSON] if name != "Content-Type" else []
    others += [("authorization", f"Bearer {ADMIN.secret}")] if name != "Authorization" else []
    body = None if name == "Content-Length" else b"{}"
    headers = [*others, *[(name, value) for value in TWICE[name]]]
    with a_server(options=ServeOptions(tokens=(ADMIN,))) as server, server.connect() as connection:
        connection.sendall(request(method, address, body, headers=headers) + (b"" if body else b"{}"))
        reply = read_reply(connection)
        assert reply.status == 400
        assert connection.recv(1) == b""


def test_the_refusal_names_the_header(server: RunningServer) -> None:
    reply = server.ask("GET", "/livez", headers=[("authorization", "Bearer a"), ("AUTHORIZATION", "Bearer b")])
    assert "Authorization" in str(reply.json()["detail"])
    assert str(reply.json()["type"]).endswith("header-given-twice")


def test_a_header_of_many_values_may_be_given_twice(server: RunningServer) -> None:
    headers = [("accept", "text/html"), ("accept", "text/plain"), ("cookie", "a=b"), ("cookie", "c=d")]
    assert server.ask("GET", "/livez", headers=headers).status == 200


def test_the_next_request_of_a_connection_is_counted_anew(server: RunningServer) -> None:
    with server.connect() as connection:
        for _ in range(3):
            connection.sendall(request("POST", f"/v1/queues/{QUEUE}/lease", b"{}"))
            assert read_reply(connection).status == 200
