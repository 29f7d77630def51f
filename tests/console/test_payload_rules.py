"""Payloads on pages: hidden from viewers unless they are allowed, and without the members that are to be masked."""

import json
from base64 import b64encode

import pytest

from queue_core.console.payload import is_redacted, shown_payload
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.task import NewTask
from queue_core.verbs.roles import Role
from tests.console.visits import Visitor
from tests.support.servers import QUEUE, a_server

SECRETS = {role: f"{str(role.name).lower()}-secret-0123456789" for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN)}
TOKENS = tuple(AccessToken(role, secret) for role, secret in SECRETS.items())
PATTERNS = ("password", "*.token", "x-key")


def shown(payload: bytes, *, most: int = 1_000, redact: tuple[str, ...] = PATTERNS) -> tuple[str, str]:
    found = shown_payload(b64encode(payload).decode(), most_bytes=most, redact=redact)
    return found.form, found.text


@pytest.mark.parametrize(
    ("path", "is_masked"),
    [
        (".password", True),
        (".deep.down.Password", True),
        (".user.token", True),
        (".passwords", False),
        (".tokens", False),
        (".a" * 1_000 + ".b", True),
    ],
)
def test_a_member_is_masked_by_its_name_or_its_path(path: str, is_masked: bool) -> None:
    assert is_redacted(path, PATTERNS) is is_masked


def test_members_are_masked_at_any_depth_and_numbers_stay_as_they_were_written() -> None:
    payload = b'{"id": 12345678901234567890.10, "user": [{"token": {"a": 1}, "password": "p"}], "note": "password"}'
    form, text = shown(payload)
    assert form == "json"
    found = json.loads(text)
    assert found["user"] == [{"token": "***", "password": "***"}]
    assert found["note"] == "password"
    assert "12345678901234567890.10" in text


@pytest.mark.parametrize(
    ("payload", "most"),
    [
        pytest.param(b'{"password": "p"', 1_000, id="broken"),
        pytest.param(b'{"password": "p"}', 10, id="cut"),
        pytest.param(b' ["password"', 1_000, id="a list"),
    ],
)
def test_json_that_can_not_be_read_is_hidden_where_something_is_to_be_masked(payload: bytes, most: int) -> None:
    assert shown(payload, most=most) == ("hidden", "")
    assert shown(payload, most=most, redact=())[0] == "text"


def test_text_is_shown() -> None:
    assert shown(b"a cat") == ("text", "a cat")


def test_viewers_see_no_payload_and_only_an_admin_keeps_one_of_which_members_are_masked() -> None:
    options = ServeOptions(tokens=TOKENS, console_redact=PATTERNS)
    with a_server(options=options) as server:
        queue = server.queue(token=SECRETS[Role.ADMIN])
        queue.add([NewTask(b'{"password": "hunter2", "cat": 1}', name="one", headers={"X-Key": "hunter2", "a": "b"})])
        queue.close()
        pages = {}
        for role, secret in SECRETS.items():
            visitor = Visitor(server.port)
            visitor.post("login", {"token": secret})
            page = visitor.get(f"queues/{QUEUE}/tasks/one")
            kept = visitor.get(f"queues/{QUEUE}/tasks/one/payload")
            pages[role] = (page.text, kept.status)
    assert all("hunter2" not in text for text, _ in pages.values())
    assert "Payloads are hidden from viewers" in pages[Role.VIEWER][0]
    assert '"password": "***", "cat": 1' in pages[Role.OPERATOR][0]
    assert {role: status for role, (_, status) in pages.items()} == {
        Role.VIEWER: 403,
        Role.OPERATOR: 403,
        Role.ADMIN: 200,
    }


def test_viewers_see_payloads_where_they_are_allowed() -> None:
    with a_server(options=ServeOptions(tokens=TOKENS, console_payloads=True)) as server:
        queue = server.queue(token=SECRETS[Role.ADMIN])
        queue.add([NewTask(b"a cat", name="one")])
        queue.close()
        visitor = Visitor(server.port)
        visitor.post("login", {"token": SECRETS[Role.VIEWER]})
        assert "a cat" in visitor.get(f"queues/{QUEUE}/tasks/one").text
        assert visitor.get(f"queues/{QUEUE}/tasks/one/payload").html == "a cat"


def test_a_member_below_the_shown_depth_is_not_shown_at_all() -> None:
    deep = b'{"a":' * 40 + b'{"password":"hidden-word"}' + b"}" * 40
    form, text = shown(deep)
    assert (form, "hidden-word" in text, "{...}" in text) == ("json", False, True)
