"""What a stranger sends before a token is checked is bounded: headers, path, query, Content-Type, cookies, forms."""

from collections.abc import Iterator

import pytest

from queue_core.console.cookies import MAX_COOKIE_CHARACTERS, cookie_of
from queue_core.console.forms import FormError, parts_fields, query_fields
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.http.head_bounds import (
    MAX_HEADERS,
    MAX_MEDIA_TYPE_BYTES,
    MAX_PATH_BYTES,
    MAX_QUERY_FIELDS,
    head_refusal,
)
from queue_core.verbs.roles import Role
from tests.support.servers import QUEUE, RunningServer, a_server

OWN = ("sec-fetch-site", "same-origin")
JSON = ("content-type", "application/json")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with a_server(options=ServeOptions(tokens=(AccessToken(Role.ADMIN, "secret-of-an-admin"),))) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/livez", [("x", "")] * MAX_HEADERS, 431),
        ("/livez", [("content-type", "a" * (MAX_MEDIA_TYPE_BYTES + 1))], 431),
        ("/livez", [("content-type", "a" * MAX_MEDIA_TYPE_BYTES)], 200),
        ("/" + "a" * MAX_PATH_BYTES, [], 414),
        ("/livez?" + "a&" * MAX_QUERY_FIELDS, [], 414),
        ("/livez?" + "a&" * (MAX_QUERY_FIELDS - 1), [], 200),
        ("/console/login?" + "&" * MAX_QUERY_FIELDS, [], 414),
    ],
)
def test_a_head_over_a_bound_is_refused(
    server: RunningServer, path: str, headers: list[tuple[str, str]], status: int
) -> None:
    assert server.ask("GET", path, headers=headers).status == status


@pytest.mark.parametrize("verb", ["add", "peek"])
def test_the_bounds_hold_on_the_fast_path_too(server: RunningServer, verb: str) -> None:
    kind = ("content-type", "application/json" + "; a*=b" * 100)
    assert server.ask("POST", f"/v1/queues/{QUEUE}/{verb}", b"{}", headers=[kind]).status == 431
    assert server.ask("POST", f"/v1/queues/{QUEUE}/{verb}", b"{}", headers=[JSON]).status == 401


def test_a_second_content_type_is_bounded_as_the_first() -> None:
    many = [(b"content-type", b"text/plain"), (b"content-type", b"a" * (MAX_MEDIA_TYPE_BYTES + 1))]
    assert head_refusal(b"/", many) is not None


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("multipart/form-data; boundary=b", 415),
        ("multipart/form-data", 415),
        ("multipart/mixed; boundary=b", 415),
        ("Multipart/Form-Data; boundary=b", 415),
        ("multipart/form-data; boundary=b" + "; a*=b" * 10_000, 431),
        ("multipart/form-data; boundary=b" + "(" * 2_000, 431),
        ("text/plain", 401),
    ],
)
def test_a_login_takes_no_parts(server: RunningServer, kind: str, status: int) -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="token"\r\n\r\nsecret-of-an-admin\r\n--b--\r\n'
    reply = server.ask("POST", "/console/login", form, headers=[OWN, ("content-type", kind)])
    assert (reply.status, "set-cookie" in reply.headers) == (status, False)


def test_a_cookie_of_quoted_backslashes_is_read_by_its_name_alone() -> None:
    value = '"' + '\\"' * 30_000 + '"'
    assert cookie_of({"cookie": f"a={value}; b=c; d={value}"}, "b") == "c"
    assert cookie_of({"cookie": f"a={value}"}, "a") == ""


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("a=1", "1"),
        ("b=2; a=1", "1"),
        ("a=1;a=3", "3"),
        ('a="1 2"', "1 2"),
        ("aa=1", ""),
        ("a", ""),
        ("", ""),
        ("a=" + "x" * (MAX_COOKIE_CHARACTERS + 1), ""),
    ],
)
def test_a_cookie_is_found(header: str, found: str) -> None:
    assert cookie_of({"cookie": header}, "a") == found


def part(name: str, content: str, *, more: str = "") -> str:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{content}\r\n'


def test_parts_are_fields() -> None:
    file = part("file", "\ufeff1,2\n--b", more='; filename="a;b.csv"\r\nContent-Type: text/csv')
    assert parts_fields("b", f"{part('slo', '10')}{file}--b--\r\n".encode()) == {"slo": "10", "file": "1,2\n--b"}


@pytest.mark.parametrize(
    "body",
    [
        "nothing",
        part("a", "1") * 101,
        part("a", "1", more="\r\nX: " + "y" * 2_000),
        part("a", "1", more="\r\nX: y" * 2_000),
        part("a", "1", more="\r\nno header"),
    ],
    ids=["no parts", "many parts", "a long header", "many headers", "no header"],
)
def test_parts_over_a_bound_are_refused(body: str) -> None:
    with pytest.raises(FormError) as refused:
        parts_fields("b", f"{body}--b--\r\n".encode())
    assert refused.value.status == 400


def test_a_query_of_very_many_fields_is_none() -> None:
    assert query_fields(b"a=1&b=%41") == {"a": "1", "b": "A"}
    assert query_fields(b"a=1&" * 3_000) == {}
