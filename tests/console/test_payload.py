"""A payload is shown as it is: numbers as they were written, bytes in hexadecimal, and never more than asked for."""

import json
from base64 import b64encode

import pytest

from queue_core.console.payload import MAX_CHARACTERS, MAX_DEPTH, MAX_HEX_BYTES, hidden_payload, shown_payload


def shown(data: bytes, *, most: int = 65_536) -> tuple[str, str]:
    found = shown_payload(b64encode(data).decode(), most_bytes=most)
    return found.form, found.text


@pytest.mark.parametrize(
    "number",
    [
        "12345678901234567890",
        "0.1000000000000000055511151231257827",
        "1e400",
        "-0",
        "1E+2",
        "1.0",
        "10" + "0" * 5000,
    ],
)
def test_a_number_of_json_is_never_rounded(number: str) -> None:
    assert shown(f'{{"n":[{number}]}}'.encode()) == ("json", f'{{\n  "n": [\n    {number}\n  ]\n}}')


@pytest.mark.parametrize(
    ("data", "form", "text"),
    [
        (b"", "empty", ""),
        (b"{}", "json", "{}"),
        (b"[ ]", "json", "[]"),
        (b'{"a":1,"a":2}', "json", '{\n  "a": 1,\n  "a": 2\n}'),
        (b'{"b":null,"a":true}', "json", '{\n  "b": null,\n  "a": true\n}'),
        ('["ä\\u001b"]'.encode(), "json", '[\n  "ä\\u001b"\n]'),
        (b"[1,", "text", "[1,"),
        (b"[" * 100_00, "text", "[" * 100_00),
        (b"42", "text", "42"),
        ("Grüße\n".encode(), "text", "Grüße\n"),
        (b"a\x1bb", "text", "a\x1bb"),
        (b"a\x00b", "hex", "00000000  61 00 62                                         a.b"),
        (b"\xff<b>", "hex", "00000000  ff 3c 62 3e                                      .<b>"),
    ],
)
def test_a_payload_is_shown_in_the_form_that_it_has(data: bytes, form: str, text: str) -> None:
    assert shown(data) == (form, text)


def test_the_shown_json_is_the_same_document() -> None:
    document = {"a": [1, 2.5, {"b": "\u2028 🐴"}], "": {}}
    form, text = shown(json.dumps(document).encode())
    assert (form, json.loads(text)) == ("json", document)


@pytest.mark.parametrize("data", [b"x" * 20, b"\xc3\xa4" * 10, b"[" + b"1," * 9 + b"1]", b"\xff" * 20])
def test_what_is_too_long_is_cut_and_says_so(data: bytes) -> None:
    found = shown_payload(b64encode(data).decode(), most_bytes=7)
    assert found.is_cut
    assert found.form in ("text", "hex")
    assert (found.size_bytes, len(found.text) <= 80) == (len(data), True)


def test_hexadecimal_has_a_bound_of_its_own() -> None:
    found = shown_payload(b64encode(b"\xff" * 10_000).decode(), most_bytes=65_536)
    assert found.is_cut
    assert len(found.text.splitlines()) == MAX_HEX_BYTES // 16


def test_what_is_no_base64_is_no_payload() -> None:
    assert shown_payload("=", most_bytes=10).form == "empty"


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 200, 400, 900])
def test_json_is_shown_to_a_depth_and_what_is_deeper_is_left_out(depth: int) -> None:
    found = shown_payload(b64encode(b"[" * depth + b"1," * 30_000 + b"1" + b"]" * depth).decode(), most_bytes=65_536)
    assert (found.form, found.is_cut, found.text.count("[")) == ("json", True, MAX_DEPTH + 1)
    assert "[...]" in found.text
    assert len(found.text) < 3_000


@pytest.mark.parametrize(
    "payload",
    [b"[" * MAX_DEPTH + b"1," * 30_000 + b"1" + b"]" * MAX_DEPTH, b'{"a":{"' + b"b" * 65_000 + b'":[1,2]}}'],
    ids=["numbers", "a long name"],
)
def test_json_is_shown_in_so_many_characters_at_most(payload: bytes) -> None:
    found = shown_payload(b64encode(payload).decode(), most_bytes=65_536)
    assert (found.form, len(found.text) <= MAX_CHARACTERS) == ("json", True)


def test_what_is_as_deep_as_shown_is_shown_whole() -> None:
    document = b"[" * MAX_DEPTH + b"[]" + b"]" * MAX_DEPTH
    found = shown_payload(b64encode(document).decode(), most_bytes=65_536)
    assert (found.is_cut, json.loads(found.text)) == (False, json.loads(document))


@pytest.mark.parametrize("data", [b"", b"a", b"ab", b"abc", b"[" * 100])
def test_of_a_hidden_payload_the_size_is_shown(data: bytes) -> None:
    found = hidden_payload(b64encode(data).decode(), most_bytes=50)
    assert (found.form, found.text, found.size_bytes, found.is_cut) == ("hidden", "", len(data), len(data) > 50)
