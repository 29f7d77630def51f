"""Where a broker's URL leads, however kombu hands it over."""

import kombu
import pytest

import queue_core.kombu  # noqa: F401 - registers the transport
from queue_core.celery.transport.address import BrokerAddress, address_of
from queue_core.celery.transport.options import options_of
from queue_core.errors import InvalidSettingError


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("towline://", BrokerAddress("http://localhost:7878")),
        ("towline://host/shop", BrokerAddress("http://host:7878", None, "shop")),
        ("towline+http://:secret@host:7000/shop", BrokerAddress("http://host:7000", "secret", "shop")),
        ("towline+http://a:1,http://b:2/shop", BrokerAddress("http://a:1,http://b:2", None, "shop")),
        ("towline+https://host", BrokerAddress("https://host")),
        ("towline+unix:///run/t.sock", BrokerAddress("unix:///run/t.sock")),
        ("towline+memory://", BrokerAddress("memory:")),
        ("towline+sqlite:////tmp/t.db", BrokerAddress("sqlite:////tmp/t.db")),
        ("towline+postgresql://u:p@h/d", BrokerAddress("postgresql://u:p@h/d")),
        ("towline+redis://h:6379/0", BrokerAddress("redis://h:6379/0")),
    ],
)
def test_an_url_leads_to_a_store_or_server(url: str, address: BrokerAddress) -> None:
    assert address_of(kombu.Connection(url)) == address


def test_the_next_broker_of_a_list_is_found_by_its_parts() -> None:
    connection = kombu.Connection("towline+http://a:1/x;towline+http://:secret@b:2/y")
    connection.maybe_switch_next()
    assert address_of(connection) == BrokerAddress("http://b:2", "secret", "y")


def test_options_name_the_namespace_and_the_token() -> None:
    connection = kombu.Connection("towline+unix:///run/t.sock", transport_options={"namespace": "n", "token": "t"})
    assert address_of(connection) == BrokerAddress("unix:///run/t.sock", "t", "n")


@pytest.mark.parametrize(
    "url",
    ["towline+http://:secret@127.0.0.1:1/x", "towline+http://secret@127.0.0.1:1/x", "towline://:secret@127.0.0.1/x"],
)
def test_a_token_is_not_shown(url: str) -> None:
    connection = kombu.Connection(url)
    assert "secret" not in connection.as_uri()
    assert "secret" in connection.as_uri(include_password=True)
    assert "127.0.0.1" in connection.as_uri()


def test_the_port_of_a_server_is_that_of_the_connection() -> None:
    connection = kombu.Connection("towline://a:1/x;towline://b:2/x")
    assert connection.port == 1
    connection.maybe_switch_next()
    assert connection.port == 2


@pytest.mark.parametrize(
    ("option", "value"),
    [("lease_seconds", 0), ("max_leases", 1.5), ("eta", "broker"), ("worker", 3), ("polling_interval", "1")],
)
def test_a_wrong_option_is_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(InvalidSettingError, match=option):
        options_of({option: value})
