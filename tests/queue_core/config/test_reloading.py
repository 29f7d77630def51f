"""A reload takes up tokens and certificates; every other changed setting is named: it waits for the next start."""

import pytest

from queue_core.config.reloading import changed_settings, with_credentials_of
from queue_core.config.settings import QueueFile, parse_queue_file

TOKENS = [{"role": "admin", "token_file": "a.tok"}]
MORE = [*TOKENS, {"role": "viewer", "token_file": "b.tok"}]
TLS = {"cert": "a.pem", "key": "a.key"}
OTHER = {"cert": "b.pem", "key": "b.key"}


def settings(server: dict[str, object], **others: object) -> QueueFile:
    found, problems = parse_queue_file({"queues": {"q": {}}, "server": server, **others})
    assert found is not None, problems
    return found


@pytest.mark.parametrize(
    ("before", "after", "waiting"),
    [
        pytest.param({"tokens": TOKENS}, {"tokens": TOKENS}, (), id="the same"),
        pytest.param({"tokens": TOKENS}, {"tokens": MORE}, (), id="another token"),
        pytest.param({}, {"tokens": TOKENS}, ("server.tokens",), id="the first token"),
        pytest.param({"tokens": TOKENS}, {}, ("server.tokens",), id="no token any more"),
        pytest.param({"tls": TLS}, {"tls": OTHER}, (), id="another certificate"),
        pytest.param({}, {"tls": TLS}, ("server.tls.cert", "server.tls.key"), id="TLS for the first time"),
        pytest.param(
            {"grpc": {"listen": "127.0.0.1:1", "certificate": "a.pem", "key": "a.key"}},
            {"grpc": {"listen": "127.0.0.1:1", "certificate": "b.pem", "key": "b.key"}},
            (),
            id="another certificate for gRPC",
        ),
        pytest.param(
            {"grpc": {"listen": "127.0.0.1:1"}}, {"grpc": {"listen": "127.0.0.1:2"}}, ("server.grpc.listen",), id="gRPC"
        ),
        pytest.param({"listen": "127.0.0.1:1"}, {"listen": "127.0.0.1:2"}, ("server.listen",), id="an address"),
        pytest.param({"hosts": ["a"]}, {"hosts": ["b"]}, ("server.hosts",), id="names"),
        pytest.param(
            {"tokens": TOKENS, "auth": {"header": "X-User", "trust": ["unix"]}},
            {"tokens": MORE, "auth": {"header": "X-User", "trust": ["10.0.0.7"]}},
            ("server.auth.trust",),
            id="a proxy, beside a token",
        ),
    ],
)
def test_what_can_not_be_taken_up_is_named(
    before: dict[str, object], after: dict[str, object], waiting: tuple[str, ...]
) -> None:
    read = settings(after)
    in_force = with_credentials_of(settings(before), read)
    assert changed_settings(in_force, read) == waiting
    assert changed_settings(with_credentials_of(in_force, read), read) == waiting, "until the next start"


def test_schedules_are_a_supervisor_s() -> None:
    schedules = {"nightly": {"queue": "q", "every": "1h"}}
    assert changed_settings(settings({}), settings({}, schedules=schedules)) == ()
