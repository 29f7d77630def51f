"""TLS on the listeners, and a proxy that logs people in: named by its header, which counts from nobody else."""

import http.client
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.http_api.listener import FleetListener
from orchestrator.http_api.paths import fleet_paths
from queue_core.client.http_calls import HttpQueues
from queue_core.errors import InvalidSettingError, OutcomeUnknownError
from queue_core.server.base.options import AccessToken, HttpTls, ProxyLogin, ServeOptions, check_options
from queue_core.server.console.proxy import is_trusted, person_of
from queue_core.task import NewTask
from queue_core.verbs.roles import Role
from tests.console.visits import Visitor
from tests.support.commands import run_program
from tests.support.fleet.certificates import Certificate, a_certificate
from tests.support.fleet.fleet_views import a_heartbeat
from tests.support.servers import IMPATIENT, QUEUE, RunningServer, a_server

ADMIN = AccessToken(Role.ADMIN, "admin-secret-0123456789")
PROXY = ProxyLogin("x-forwarded-user", ("127.0.0.1",), Role.VIEWER, {"ops@example.com": Role.OPERATOR})
HERE = f"queues/{QUEUE}"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return a_certificate(tmp_path_factory.mktemp("tls"))


def page_over_tls(url: str, certificate: Certificate) -> tuple[int, str]:
    port = int(url.rpartition(":")[2])
    context = ssl.create_default_context(cafile=str(certificate.certificate))
    connection = http.client.HTTPSConnection("localhost", port, timeout=10, context=context)
    connection.request("GET", "/console/queues")
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_queues_and_pages_are_served_over_tls(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.certificate))
    tls = HttpTls(certificate.certificate, certificate.key)
    with a_server(options=ServeOptions("localhost", tls=tls)) as server:
        assert server.url.startswith("https://localhost:")
        queues = HttpQueues(server.url, retries=IMPATIENT)
        queues.queue(QUEUE).add([NewTask(b"x" * 100_000)])
        (lease,) = queues.queue(QUEUE).lease(1, worker="w")
        assert len(lease.payload) == 100_000
        queues.close()
        status, html = page_over_tls(server.url, certificate)
        assert (status, QUEUE in html) == (200, True)
        plain = HttpQueues(server.url.replace("https://", "http://"), retries=IMPATIENT)
        with pytest.raises(OutcomeUnknownError, match="the URL of a server with TLS begins with https://"):
            plain.queues()
        plain.close()
        listener = FleetListener(
            ServeOptions("localhost", 0, tls=tls), fleet_paths(*a_heartbeat(), is_alone=True), queues=server.url
        )
        listener.start()
        try:
            status, html = page_over_tls(listener.url, certificate)
            assert (status, QUEUE in html) == (200, True)
        finally:
            listener.stop()


def test_a_request_that_is_refused_over_tls_gets_its_answer(certificate: Certificate) -> None:
    tls = HttpTls(certificate.certificate, certificate.key)
    context = ssl.create_default_context(cafile=str(certificate.certificate))
    with capture_logs() as logged, a_server(options=ServeOptions("localhost", tls=tls)) as server:
        connection = http.client.HTTPSConnection("localhost", server.port, timeout=10, context=context)
        connection.request("GET", "/livez", headers={"x": "y" * 70_000})
        answer = connection.getresponse()
        assert (answer.status, b"head" in answer.read()) == (431, True)
        connection.close()
    assert "loop.failed" not in [one["event"] for one in logged]


def test_a_certificate_that_can_not_be_used_is_refused_with_its_place(certificate: Certificate, tmp_path: Path) -> None:
    (tmp_path / "other.key").write_text("no key")
    settings = tmp_path / "towline.yaml"
    for cert, key, said in (
        ("none.pem", "none.key", "server.tls: "),
        (certificate.certificate, "other.key", "are no certificate and its key"),
    ):
        settings.write_text(
            "store: sqlite:///q.db\nqueues: {}\n"
            f'server: {{listen: "127.0.0.1:0", tls: {{cert: "{cert}", key: "{key}"}}}}\n'
        )
        told = run_program("serve", folder=tmp_path)
        assert told.code != 0
        assert said in told.err


@dataclass(frozen=True, slots=True)
class Behind:
    """A person behind the proxy."""

    server: RunningServer

    def person(self, name: str, *more: str) -> Visitor:
        return Visitor(self.server.port, headers={"x-forwarded-user": name})


@pytest.fixture(scope="module")
def behind() -> Iterator[Behind]:
    options = ServeOptions(tokens=(ADMIN,), proxy=PROXY, console_writes=True, allowed_hosts=("queue.example.com",))
    with a_server(options=options) as server:
        yield Behind(server)


def test_a_person_whom_the_proxy_names_needs_no_login_and_has_their_role(behind: Behind) -> None:
    anybody, operator = behind.person("anybody@example.com"), behind.person("ops@example.com")
    assert QUEUE in anybody.get("queues").text
    assert anybody.post(f"{HERE}/pause").status == 403
    assert "is paused" in operator.post(f"{HERE}/pause", {"back": HERE}).text
    assert operator.post(f"{HERE}/resume", {"back": HERE}).status == 200


def test_without_the_header_a_token_is_asked_for_and_the_header_opens_no_call_of_the_api(behind: Behind) -> None:
    assert Visitor(behind.server.port).get("queues").path == "/console/login"
    assert behind.person("ops@example.com").once("GET", "/v1/queues").status == 401


def test_behind_a_proxy_with_a_prefix_links_and_redirects_are_relative(behind: Behind) -> None:
    visitor = behind.person("ops@example.com")
    visitor.host = "queue.example.com"
    assert visitor.once("GET", "/console").headers["location"] == "console/"
    html = visitor.get(HERE).html
    assert 'href="/' not in html
    assert 'action="/' not in html
    origin = {"origin": "https://queue.example.com"}
    sent = visitor.once("POST", f"/console/{HERE}/pause", "back=queues", origin)
    assert (sent.status, sent.headers["location"]) == (303, "../../queues")
    visitor.once("POST", f"/console/{HERE}/resume", "back=queues", origin)
    foreign = visitor.once("POST", f"/console/{HERE}/pause", "back=queues", {"origin": "https://evil.example"})
    assert foreign.status == 403


@pytest.mark.parametrize(
    ("address", "headers", "person"),
    [
        pytest.param("127.0.0.1", [(b"X-Forwarded-User", b"ann")], "ann", id="from the proxy"),
        pytest.param("127.0.0.2", [(b"x-forwarded-user", b"ann")], None, id="from elsewhere"),
        pytest.param("", [(b"x-forwarded-user", b"ann")], None, id="from a Unix socket that is not trusted"),
        pytest.param("127.0.0.1", [], None, id="no header"),
        pytest.param("127.0.0.1", [(b"x-forwarded-user", b"a"), (b"x-forwarded-user", b"b")], None, id="twice"),
        pytest.param("127.0.0.1", [(b"x-forwarded-user", b"a\x1b[2J")], None, id="control characters"),
        pytest.param("127.0.0.1", [(b"x-forwarded-user", b" ")], None, id="nobody"),
        pytest.param("127.0.0.1", [(b"x-forwarded-user", b"a" * 321)], None, id="too long"),
    ],
)
def test_only_the_proxys_header_names_a_person(
    address: str, headers: list[tuple[bytes, bytes]], person: str | None
) -> None:
    assert person_of(PROXY, address, headers) == person


@pytest.mark.parametrize(
    ("address", "trust", "found"),
    [
        ("10.1.2.3", ("10.0.0.0/8",), True),
        ("11.1.2.3", ("10.0.0.0/8",), False),
        ("::ffff:10.1.2.3", ("10.0.0.0/8",), True),
        ("::1", ("::1",), True),
        ("", ("unix",), True),
        ("testclient", ("10.0.0.0/8",), False),
    ],
)
def test_an_address_is_trusted_within_its_network(address: str, trust: tuple[str, ...], found: bool) -> None:
    assert is_trusted(address, trust) is found


def test_a_proxy_without_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match="no token is set"):
        check_options(ServeOptions(proxy=PROXY))
    text = "server: {auth: {header: X-User, trust: [127.0.0.1]}}\nqueues: {}\n"
    (tmp_path / "towline.yaml").write_text(text)
    told = run_program("check", folder=tmp_path)
    assert (told.code, "server.auth: without tokens the API is open" in told.out + told.err) == (78, True)
    (tmp_path / "towline.yaml").write_text(text.replace("[127.0.0.1]", "[nginx]"))
    assert "write an address, a network such as 10.0.0.0/8, or unix" in run_program("check", folder=tmp_path).err
