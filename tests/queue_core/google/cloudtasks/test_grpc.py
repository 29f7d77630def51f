"""The listener for gRPC: where it listens, tokens, TLS, its settings, and its end."""

import socket
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.api_core import exceptions
from google.cloud import tasks_v2beta2
from google.cloud.tasks_v2beta2.services.cloud_tasks.transports import CloudTasksGrpcTransport

from queue_core.cli.failure import CommandError
from queue_core.cli.serving import serve_options
from queue_core.config.settings import parse_queue_file
from queue_core.errors import InvalidSettingError, ListenError
from queue_core.server.base.options import AccessToken, GrpcOptions, GrpcTls, ServeOptions, check_options
from queue_core.server.server import QueueServer, ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.verbs.roles import Role
from tests.support.google.cloud_tasks import PARENT, a_client, a_cloud_tasks_server

TOKENS = (AccessToken(Role.PRODUCER, "producer-" * 3), AccessToken(Role.ADMIN, "admin-" * 4))
TASK = {"pull_message": {"payload": b"x"}}


def _pem() -> GrpcTls:
    """A certificate of 127.0.0.1's own."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "here")])
    now = datetime(2026, 1, 1, tzinfo=UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=36_500))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return GrpcTls(certificate.public_bytes(serialization.Encoding.PEM), secret)


def test_a_call_needs_a_token_where_the_server_has_some() -> None:
    with (
        a_cloud_tasks_server(MemoryStore(), options=ServeOptions(tokens=TOKENS)) as server,
        a_client(server, "grpc") as client,
    ):
        with pytest.raises(exceptions.Unauthenticated):
            client.create_task(parent=PARENT, task=TASK)
        as_producer = [("authorization", f"Bearer {TOKENS[0].secret}")]
        client.create_task(parent=PARENT, task=TASK, metadata=as_producer)
        with pytest.raises(exceptions.PermissionDenied):
            client.purge_queue(name=PARENT, metadata=as_producer)
        client.purge_queue(name=PARENT, metadata=[("authorization", f"Bearer {TOKENS[1].secret}")])


def test_a_listener_with_a_certificate_speaks_tls_only() -> None:
    tls = _pem()
    with a_cloud_tasks_server(MemoryStore(), options=ServeOptions(grpc=GrpcOptions(tls=tls))) as server:
        address = server.thread.grpc_address
        assert address is not None
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(tls.certificates)) as channel:
            client = tasks_v2beta2.CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))
            assert client.create_task(parent=PARENT, task=TASK).name == f"{PARENT}/tasks/_1"
        with a_client(server, "grpc") as client, pytest.raises(exceptions.ServiceUnavailable):
            client.create_task(parent=PARENT, task=TASK, timeout=5)
    assert repr(tls) == "GrpcTls()"


@pytest.mark.parametrize(
    "grpc_options",
    [
        pytest.param(GrpcOptions("0.0.0.0"), id="the network, in plain text"),
        pytest.param(GrpcOptions(port=65_536), id="no such port"),
        pytest.param(GrpcOptions("::", tls=GrpcTls(b"", b"")), id="the network, without a token"),
    ],
)
def test_a_listener_that_the_network_could_use_is_refused(grpc_options: GrpcOptions) -> None:
    with pytest.raises(InvalidSettingError):
        check_options(ServeOptions(grpc=grpc_options))


def test_a_listener_for_the_network_needs_a_certificate_and_a_token() -> None:
    check_options(ServeOptions(grpc=GrpcOptions("::", tls=GrpcTls(b"", b"")), tokens=TOKENS))


def test_a_port_that_is_taken_is_told_and_nothing_is_left_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        options = ServeOptions(port=port, grpc=GrpcOptions(port=taken.getsockname()[1]))
        with pytest.raises(ListenError, match="for gRPC"):
            QueueServer(MemoryStore(), options)
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_certificate_that_is_none_is_told() -> None:
    with pytest.raises(ListenError, match="certificate"):
        QueueServer(MemoryStore(), ServeOptions(port=0, grpc=GrpcOptions(tls=GrpcTls(b"no", b"pem"))))


def test_without_the_packages_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "queue_core.google.cloudtasks.grpc_server", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(InvalidSettingError, match=r"towline\[grpc\]"):
        QueueServer(MemoryStore(), ServeOptions(port=0, grpc=GrpcOptions()))


# -- settings ---------------------------------------------------------------------------------------------------------


def test_the_settings_name_the_address_alone_or_with_a_certificate(tmp_path: Path) -> None:
    tls = _pem()
    (tmp_path / "server.pem").write_bytes(tls.certificates)
    (tmp_path / "server.key").write_bytes(tls.key)
    plain, mistakes = parse_queue_file({"server": {"grpc": "[::1]:0"}})
    assert plain is not None
    assert not mistakes
    assert serve_options(plain, tmp_path).grpc == GrpcOptions("::1", 0)
    whole = {"listen": "127.0.0.1:7879", "certificate": "server.pem", "key": "server.key"}
    guarded, mistakes = parse_queue_file({"server": {"grpc": whole}})
    assert guarded is not None
    assert not mistakes
    assert serve_options(guarded, tmp_path).grpc == GrpcOptions("127.0.0.1", 7879, tls)
    (tmp_path / "server.key").unlink()
    with pytest.raises(CommandError, match=r"server\.key"):
        serve_options(guarded, tmp_path)


@pytest.mark.parametrize(
    ("value", "path", "told"),
    [
        ("7879", "server.grpc.listen", "host:port"),
        ("unix:/x", "server.grpc.listen", "host:port"),
        ("h:99999", "server.grpc.listen", "[0, 65535]"),
        ("0.0.0.0:1", "server.grpc", "certificate and key"),
        ({"listen": "127.0.0.1:1", "key": "k"}, "server.grpc.key", "together"),
        ({"listen": "0.0.0.0:1", "key": "k", "certificate": "c"}, "server.grpc", "without a token"),
        ({}, "server.grpc.listen", ""),
        ({"listen": "127.0.0.1:1", "port": 1}, "server.grpc.port", "unknown"),
    ],
)
def test_a_mistake_in_the_settings_is_told_with_its_place(value: object, path: str, told: str) -> None:
    _, mistakes = parse_queue_file({"server": {"grpc": value}})
    found = {".".join(map(str, mistake.path)): mistake.message for mistake in mistakes}
    assert list(found) == [path]
    assert told in found[path]


def test_a_stranger_is_refused_before_the_message_is_looked_at() -> None:
    options = ServeOptions(tokens=TOKENS, grpc=GrpcOptions())
    thread = ServerThread(MemoryStore(), replace(options, port=0))
    thread.start()
    try:
        assert thread.grpc_address is not None
        with grpc.insecure_channel(thread.grpc_address) as channel:
            call = channel.unary_unary("/google.cloud.tasks.v2beta2.CloudTasks/CreateTask")
            codes = []
            for metadata in ([], [("authorization", f"Bearer {TOKENS[0].secret}")]):
                with pytest.raises(grpc.RpcError) as raised:
                    call(b"\xff" * 1000, metadata=metadata, timeout=20)
                codes.append(raised.value.code())
        assert codes == [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INTERNAL]
    finally:
        thread.stop()
