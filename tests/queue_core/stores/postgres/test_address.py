"""The URL of a PostgreSQL store: what is ours, what is libpq's, and what nobody is to see."""

import pytest
from psycopg.conninfo import conninfo_to_dict

from queue_core.errors import InvalidSettingError
from queue_core.stores.postgres.client.address import parse_address

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://app:{SECRET}@db.example:6432/work", "postgresql://app@db.example:6432/work"),
        (f"postgres://app:{SECRET}@db.example/work?sslmode=require", "postgresql://app@db.example/work"),
        (f"postgresql://db.example/work?user=app&password={SECRET}", "postgresql://app@db.example/work"),
        (f"postgresql://a?b:{SECRET}?@h/work", "postgresql://a%3Fb@h/work"),
        (f"postgresql://h/work?listen=postgresql%3A%2F%2Fa%3A{SECRET}%40direct%2Fwork", "postgresql://h/work"),
        ("postgresql://a:1,[::1]:2/work", "postgresql://a:1,[::1]:2/work"),
        ("postgresql://a,b:2/work", "postgresql://a,b:2/work"),
        ("postgresql:///work?host=/run/pg&port=5433", "postgresql:///work?host=/run/pg&port=5433"),
        ("postgresql://h/work?schema=jobs", "postgresql://h/work?schema=jobs"),
        ("postgresql://", "postgresql:///"),
    ],
)
def test_a_store_is_shown_without_its_secrets(url: str, shown: str) -> None:
    address = parse_address(url)
    assert address.shown == shown
    assert SECRET not in repr(address)


def test_what_is_ours_is_not_given_to_the_driver() -> None:
    address = parse_address("postgresql://h/work?schema=jobs&sslmode=require&listen=postgresql://direct:5432/work")
    settings = conninfo_to_dict(address.conninfo)
    assert (settings["host"], settings["dbname"], settings["sslmode"]) == ("h", "work", "require")
    assert (address.schema, conninfo_to_dict(address.listen)["host"]) == ("jobs", "direct")


def test_a_cut_link_is_found_within_seconds_unless_the_url_says_otherwise() -> None:
    settings = conninfo_to_dict(parse_address("postgresql://h/work?tcp_user_timeout=60000").conninfo)
    assert settings["tcp_user_timeout"] == "60000"
    assert int(str(settings["connect_timeout"])) <= 3
    assert int(str(settings["keepalives_idle"])) <= 3


def test_of_several_hosts_the_one_that_takes_writes_is_meant() -> None:
    several = conninfo_to_dict(parse_address("postgresql://a,b/work").conninfo)
    assert several["target_session_attrs"] == "read-write"
    told = conninfo_to_dict(parse_address("postgresql://a,b/work?target_session_attrs=any").conninfo)
    assert told["target_session_attrs"] == "any"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://app:{SECRET}%zz@h/work",
        f"postgresql://app:{SECRET}@[::1/work",
        f"postgresql://app:{SECRET}@h/work?durability=strict",
        f"mysql://app:{SECRET}@h/work",
        f"postgresql:{SECRET}",
        f"postgresql://h/work?listen=redis://:{SECRET}@h",
        "postgresql://h/work?schema=No-Name",
        "postgresql://h/work?schema=",
    ],
)
def test_another_url_is_refused_without_showing_its_secrets(url: str) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        parse_address(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_option_that_is_not_known_is_named() -> None:
    with pytest.raises(InvalidSettingError, match="durability"):
        parse_address("postgresql://h/work?durability=strict")
