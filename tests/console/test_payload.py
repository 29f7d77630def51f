"""A payload is shown as it is: numbers as they were written, bytes in hexadecimal, and never more than asked for."""

import json
from base64 import b64encode

import pytest

from queue_core.console.payload import MAX_HEX_BYTES, shown_payload


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
