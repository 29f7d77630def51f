"""URLs of stores as text: their secrets hidden, a password put in."""

from pathlib import Path

import pytest

from queue_core.config.store_urls import has_password, is_shared, masked, with_absolute_sockets, with_password


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///a.db", "sqlite:///a.db"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:secret@host/0", "redis://:***@host/0"),
        ("postgresql://user:secret@a:1,b:2/db?sslmode=require", "postgresql://user:***@a:1,b:2/db?sslmode=require"),
        ("postgresql://user@host/db?password=secret&a=b", "postgresql://user@host/db?password=***&a=b"),
        ("postgresql://host/db?sslpassword=secret", "postgresql://host/db?sslpassword=***"),
        ("redis://:sec/r@e:t@host/0", "redis://:***@host/0"),
        ("user:secret@host", "user:***@host"),
        ("http://a:7878,http://b:7878", "http://a:7878,http://b:7878"),
        ("unix:///run/towline.sock", "unix:///run/towline.sock"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert masked(url) == shown
    assert has_password(url) == ("secret" in url or "sec/" in url)


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("redis://host/0", "redis://:a%2Fb%40c@host/0"),
        ("postgresql://user@host/db?a=b", "postgresql://user:a%2Fb%40c@host/db?a=b"),
        ("postgresql:///db?host=/run", "postgresql://:a%2Fb%40c@/db?host=/run"),
        ("redis+cluster://a:1,b:2", "redis+cluster://:a%2Fb%40c@a:1,b:2"),
    ],
)
def test_a_password_is_put_where_it_belongs(url: str, whole: str) -> None:
    assert with_password(url, "a/b@c") == whole


def test_which_stores_several_hosts_share() -> None:
    assert [is_shared(url) for url in ("redis://h", "postgresql://h/d", "sqlite:///a.db", "memory:")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("unix:/run/towline.sock", "unix:///run/towline.sock"),
        ("unix:///run/towline.sock", "unix:///run/towline.sock"),
        ("unix:towline.sock", "unix:///srv/towline.sock"),
        ("unix:/a.sock, unix:///b.sock,http://c:1", "unix:///a.sock,unix:///b.sock,http://c:1"),
        ("unix:", "unix:"),
        ("http://127.0.0.1:7878", "http://127.0.0.1:7878"),
        ("sqlite:///towline.db", "sqlite:///towline.db"),
    ],
)
def test_a_socket_is_accepted_as_server_listen_writes_it_and_as_a_url(given: str, url: str) -> None:
    assert with_absolute_sockets(given, Path("/srv")) == url
