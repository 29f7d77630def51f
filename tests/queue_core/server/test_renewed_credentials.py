"""Tokens and certificates are replaced while a server runs: the new ones count at once, and the old ones no more."""

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.http_api.listener import FleetListener
from orchestrator.http_api.paths import fleet_paths
from queue_core.errors import InvalidSettingError
from queue_core.server.base.options import AccessToken, HttpTls, ServeOptions
from queue_core.verbs.roles import Role
from tests.console.visits import Visitor
from tests.support.fleet.certificates import a_certificate
from tests.support.fleet.fleet_views import a_heartbeat
from tests.support.servers import QUEUE, RunningServer, a_server, read_reply, request

OLD = AccessToken(Role.WORKER, "old-secret-0123456789")
NEW = AccessToken(Role.WORKER, "new-secret-0123456789")
ADMIN = AccessToken(Role.ADMIN, "admin-secret-0123456789")
BEFORE = ServeOptions(tokens=(OLD, ADMIN), console_writes=True)
AFTER = replace(BEFORE, tokens=(NEW, ADMIN))
LEASE = f"/v1/queues/{QUEUE}/lease"


def with_token(token: AccessToken) -> list[tuple[str, str]]:
    return [("content-type", "application/json"), ("authorization", f"Bearer {token.secret}")]


def statuses(server: RunningServer) -> list[int]:
    """Return how the old token, the new one and the admin's are answered."""
    return [server.ask("POST", LEASE, b"{}", headers=with_token(token)).status for token in (OLD, NEW, ADMIN)]


def test_a_new_token_counts_at_once_and_the_old_one_no_more() -> None:
    with a_server(options=BEFORE) as server:
        assert statuses(server) == [200, 401, 200]
        server.thread.renew(AFTER)
        assert statuses(server) == [401, 200, 200]
        server.thread.renew(BEFORE)
        assert statuses(server) == [200, 401, 200]


def test_a_connection_whose_head_is_known_is_not_admitted_by_it_any_more() -> None:
    with a_server(options=BEFORE) as server, server.connect() as connection:
        for _ in range(3):
            connection.sendall(request("POST", LEASE, b"{}", headers=with_token(OLD)))
            assert read_reply(connection).status == 200
        server.thread.renew(AFTER)
        connection.sendall(request("POST", LEASE, b"{}", headers=with_token(OLD)))
        assert read_reply(connection).status == 401


@pytest.mark.parametrize("verb", ["add", "lease", "exchange"])
def test_a_token_whose_scope_became_narrower_is_refused_where_its_head_is_known(verb: str) -> None:
    path, body = f"/v1/queues/{QUEUE}/{verb}", b'{"tasks":[{"text":"x"}]}' if verb == "add" else b"{}"
    with a_server(options=BEFORE) as server, server.connect() as connection:
        for queues, status in ((None, 200), ((QUEUE,), 200), (("other-*",), 403), (None, 200)):
            server.thread.renew(replace(BEFORE, tokens=(replace(OLD, queues=queues), ADMIN)))
            for _ in range(3):
                connection.sendall(request("POST", path, body, headers=with_token(OLD)))
                assert read_reply(connection).status == status


def test_a_session_that_the_removed_token_opened_is_over() -> None:
    with a_server(options=BEFORE) as server:
        old, admin = Visitor(server.port), Visitor(server.port)
        assert QUEUE in old.post("login", {"token": OLD.secret, "back": "queues"}).text
        admin.post("login", {"token": ADMIN.secret})
        server.thread.renew(AFTER)
        assert old.get("queues").path == "/console/login"
        assert QUEUE in admin.get("queues").text
        assert QUEUE in old.post("login", {"token": NEW.secret, "back": "queues"}).text


def test_a_token_that_lost_its_role_has_lost_it() -> None:
    with a_server(options=BEFORE) as server:
        server.thread.renew(replace(BEFORE, tokens=(replace(OLD, role=Role.VIEWER), ADMIN)))
        assert server.ask("POST", LEASE, b"{}", headers=with_token(OLD)).status == 403


def test_a_server_with_tokens_is_not_opened_and_one_without_gets_none() -> None:
    with a_server(options=BEFORE) as server:
        server.thread.renew(replace(BEFORE, tokens=()))
        assert server.ask("POST", LEASE, b"{}").status == 401
    with a_server(options=ServeOptions()) as server:
        server.thread.renew(AFTER)
        assert server.ask("POST", LEASE, b"{}").status == 200


def served_certificate(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port))


def test_a_renewed_certificate_is_served_to_those_who_connect_from_now_on(tmp_path: Path) -> None:
    made = a_certificate(tmp_path)
    tls = HttpTls(made.certificate, made.key)
    with a_server(options=replace(BEFORE, tls=tls)) as server:
        context = ssl.create_default_context(cafile=str(made.certificate))
        before = served_certificate(server.port)
        with context.wrap_socket(server.connect(), server_hostname="localhost") as connection:
            a_certificate(tmp_path)
            server.thread.renew(replace(BEFORE, tls=tls))
            renewed = served_certificate(server.port)
            assert renewed != before
            assert renewed.split() == made.certificate.read_text().split()
            connection.sendall(request("GET", "/livez"))
            assert read_reply(connection).status == 200, "who is connected stays so"
            made.certificate.write_text("half a certifi")
            with pytest.raises(InvalidSettingError):
                server.thread.renew(replace(AFTER, tls=tls))
        assert served_certificate(server.port) == renewed
        context = ssl._create_unverified_context()
        with context.wrap_socket(server.connect()) as connection:
            connection.sendall(request("POST", LEASE, b"{}", headers=with_token(OLD)))
            assert read_reply(connection).status == 200, "what can't be taken up whole is not taken up"


def test_a_certificate_with_a_key_of_another_kind_is_served_alone(tmp_path: Path) -> None:
    made = a_certificate(tmp_path)
    tls = HttpTls(made.certificate, made.key)
    with a_server(options=ServeOptions(tls=tls)) as server:
        a_certificate(tmp_path, kind=("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"))
        server.thread.renew(ServeOptions(tls=tls))
        assert served_certificate(server.port).split() == made.certificate.read_text().split()


def test_a_supervisor_s_listener_takes_up_tokens_and_certificates(tmp_path: Path) -> None:
    made = a_certificate(tmp_path)
    tls = HttpTls(made.certificate, made.key)
    context = ssl._create_unverified_context()
    with a_server(options=BEFORE) as queues:
        listener = FleetListener(
            replace(BEFORE, port=0, tls=tls), fleet_paths(*a_heartbeat(), is_alone=True), queues=queues.url
        )
        port = int(listener.start().rpartition(":")[2])

        async def ask(token: AccessToken) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(request("GET", "/metrics", headers=[*with_token(token), ("connection", "close")]))
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            return answer.split(b" ", 2)[1]

        try:
            assert [asyncio.run(ask(token)) for token in (OLD, NEW)] == [b"200", b"401"]
            before = served_certificate(port)
            a_certificate(tmp_path)
            listener.renew(replace(AFTER, port=0, tls=tls))
            assert [asyncio.run(ask(token)) for token in (OLD, NEW)] == [b"401", b"200"]
            assert served_certificate(port) != before
        finally:
            listener.stop()
