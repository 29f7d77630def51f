"""No error shows a value of its task's payload, however libraries, handlers and people write it, and no secret."""

import ast
import asyncio
import base64
import binascii
import configparser
import csv
import datetime as dt
import decimal
import html
import http.client
import io
import ipaddress
import json
import pickle  # noqa: TID251 - a producer's
import pprint
import re
import smtplib
import sqlite3
import ssl
import subprocess
import textwrap
import unittest
import urllib.parse
import urllib.request
import uuid
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import jinja2
import pytest
import requests
import urllib3
from pydantic import BaseModel, Field, TypeAdapter

from queue_core.attempts.failures import failure_of
from queue_core.attempts.redaction import redacted, redacted_traceback, secrets_of

CARD = "4111-1111-2222-3333"
MAIL = "anna.karenina@example.org"
NAME = "Anna Arkadjewna Karenina"
STREET = "Große Straße 7, Hinterhof\nzweite Klingel"
PATH = "/srv/uploads/tenant-7781/passport scan.pdf"
PAGE = "https://shop.example.org/orders/88213377?coupon=WINTER-2026"
AMOUNT = 1234567.89
NUMBER = 47110815
SINCE = "2019-07-23T11:45:31Z"
ORDER = {
    "card": CARD,
    "email": MAIL,
    "name": NAME,
    "address": {"street": STREET, "since": SINCE},
    "file": PATH,
    "page": PAGE,
    "amount": AMOUNT,
    "number": NUMBER,
    "lines": [{"sku": "ZX-81/16K", "note": "gift wrap, no invoice"}],
    "stock": {"ACME-90210": 3},
    "key": "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9",
}
PAYLOAD = json.dumps(ORDER).encode()
VALUES = [CARD, MAIL, NAME, STREET, PATH, PAGE, str(AMOUNT), str(NUMBER), "ZX-81/16K", "gift wrap, no invoice"]
VALUES += ["ACME-90210", str(ORDER["key"]), SINCE]


def plain(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.replace("<payload>", "\n")).casefold()


def shown_parts(shown: str) -> set[str]:
    """Return what a text shows of the values: each six letters and digits in a row that a value has."""
    parts = {value[at : at + 6] for value in map(plain, VALUES) for at in range(len(value) - 5)}
    runs = [plain(run) for run in shown.replace("***", "<payload>").split("<payload>")]
    return {part for part in parts if any(part in run for run in runs)}


class Order(BaseModel):
    card: int
    email: bool
    name: str = Field(max_length=3)
    amount: int
    lines: dict[str, int]


class CardError(Exception):
    def __init__(self, card: str, holder: str) -> None:
        super().__init__(card, holder)


def caught(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - an assertion's, a group's
        return error
    raise AssertionError("nothing was raised")


def fail(error: BaseException) -> NoReturn:
    raise error


def insert_twice() -> None:
    database = sqlite3.connect(":memory:")
    try:
        database.execute(f"SELECT '{MAIL}")
    finally:
        database.close()


def chained() -> None:
    try:
        int(CARD)
    except ValueError as error:
        raise RuntimeError(f"order of {NAME} was refused") from error


def with_notes() -> None:
    error = ValueError("order was refused")
    error.add_note(f"card {CARD} of {MAIL}")
    raise error


def grouped() -> None:
    raise ExceptionGroup("two of them", [KeyError(MAIL), ExceptionGroup("inner", [ValueError(f"bad {CARD}")])])


def compare() -> None:
    case = unittest.TestCase()
    case.maxDiff = None
    case.assertEqual(ORDER, {**ORDER, "card": "none"})


def compare_lines() -> None:
    unittest.TestCase().assertMultiLineEqual(STREET, "Kleine Gasse 1")


async def two_calls() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(one_call())


async def one_call() -> None:
    raise LookupError(f"no order {NUMBER} of {MAIL}")


def http_error() -> None:
    response = requests.Response()
    response.status_code, response.reason, response.url = 404, "Not Found", PAGE
    response.raise_for_status()


def template_error() -> None:
    jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=True).from_string(
        "{{ order['" + NAME + "'] }}"
    ).render(order={})


RAISED: dict[str, Callable[[], object]] = {
    "pydantic, many fields": lambda: Order.model_validate(ORDER),
    "pydantic, from JSON": lambda: Order.model_validate_json(PAYLOAD),
    "pydantic, its text in another error": lambda: fail(RuntimeError(str(caught(lambda: Order.model_validate(ORDER))))),
    "pydantic, a literal": lambda: TypeAdapter(int).validate_python(CARD),
    "int": lambda: int(CARD),
    "float": lambda: float(NAME),
    "decimal": lambda: decimal.Decimal(f"{AMOUNT} of {NAME}") + decimal.Decimal(CARD),
    "KeyError of a value": lambda: {}[MAIL],
    "KeyError of a key of data": lambda: {}["ACME-90210"],
    "KeyError of a tuple": lambda: {}[(MAIL, NUMBER)],
    "ValueError of list.index": lambda: [].index(CARD),
    "list.remove": lambda: fail(ValueError(f"{NAME!r} is not in list")),
    "strptime": lambda: dt.datetime.strptime(SINCE, "%Y-%m-%d"),  # noqa: DTZ007 - it fails
    "fromisoformat": lambda: dt.datetime.fromisoformat(f"{NUMBER}-{CARD}"),
    "json, with the document": lambda: fail(ValueError(f"{caught(lambda: json.loads(MAIL))}: {MAIL}")),
    "UnicodeDecodeError": (NAME.encode() + b"\xff").decode,
    "ascii": lambda: fail(ValueError(ascii(STREET))),
    "FileNotFoundError": lambda: Path(PATH).read_bytes(),
    "FileNotFoundError, two names": lambda: fail(FileNotFoundError(2, "No such file", PATH, None, PATH + ".bak")),
    "subprocess": lambda: subprocess.run(["false", "--file", PATH, "--mail", MAIL], check=True),
    "subprocess, its output": lambda: subprocess.run(["ls", PATH], check=True, capture_output=True),
    "subprocess, a time-out": lambda: fail(subprocess.TimeoutExpired(["pdftk", PATH, NAME], 3.0)),
    "sqlite, a statement": insert_twice,
    "sqlite, a key": lambda: fail(sqlite3.IntegrityError(f"UNIQUE constraint failed: orders.email ({MAIL})")),
    "postgres, a key": lambda: fail(
        RuntimeError(
            'duplicate key value violates unique constraint "orders_pkey"\n'
            f"DETAIL:  Key (email)=({MAIL}) already exists."
        )
    ),
    "postgres, a row": lambda: fail(
        RuntimeError(f"null value in column\nDETAIL:  Failing row contains ({NUMBER}, {MAIL}, {NAME}, null).")
    ),
    "postgres, a cut statement": lambda: fail(
        RuntimeError(f'syntax error at or near "Straße"\nLINE 1: ...RT INTO orders VALUES (\'{MAIL[:14]}...\n        ^')
    ),
    "sqlalchemy": lambda: fail(
        RuntimeError(
            "(psycopg.errors.UniqueViolation) [SQL: INSERT INTO o (mail, n) VALUES (%(mail)s, %(n)s)]\n"
            f"[parameters: {{'mail': '{MAIL}', 'n': {NUMBER}}}]"
        )
    ),
    "requests, a status": http_error,
    "requests, a connection": lambda: requests.get(PAGE.replace("shop.example.org", "127.0.0.1:1"), timeout=1),
    "requests, a URL": lambda: requests.get(f"{MAIL}:x", timeout=1),
    "urllib3": lambda: fail(urllib3.exceptions.LocationParseError(PAGE)),
    "urllib": lambda: urllib.request.urlopen(f"foo:{MAIL}"),
    "http.client": lambda: http.client.HTTPConnection(f"h:{NAME}"),
    "ssl": lambda: fail(
        ssl.SSLCertVerificationError(1, f"Hostname mismatch, certificate is not valid for '{PAGE.split('/')[2]}'")
    ),
    "smtp": lambda: fail(smtplib.SMTPRecipientsRefused({MAIL: (550, b"no such user anna.karenina")})),
    "a service of AWS": lambda: fail(
        RuntimeError(
            f"An error occurred (NoSuchKey) when calling the GetObject operation: Key {PATH[1:]} does not exist"
        )
    ),
    "redis": lambda: fail(
        RuntimeError(f"WRONGTYPE Operation against key order:{NUMBER}:{MAIL} holding the wrong kind")
    ),
    "jinja2": template_error,
    "jinja2, a syntax error": lambda: jinja2.Template("{{ " + MAIL + " "),
    "an assertion": compare,
    "an assertion of lines": compare_lines,
    "an assertion with its values": lambda: fail(AssertionError(f"assert {ORDER!r} == {{}}")),
    "a chain of causes": chained,
    "notes": with_notes,
    "a group": grouped,
    "a group of tasks": lambda: asyncio.run(two_calls()),
    "arguments": lambda: fail(CardError(CARD, NAME)),
    "a whole payload": lambda: fail(ValueError(f"can't handle {PAYLOAD!r}")),
    "a pretty payload": lambda: fail(ValueError(pprint.pformat(ORDER, width=30))),
    "an indented payload": lambda: fail(ValueError(json.dumps(ORDER, indent=2, sort_keys=True))),
    "a value in JSON": lambda: fail(ValueError(json.dumps({"detail": {"got": STREET}}))),
    "JSON in JSON": lambda: fail(ValueError(json.dumps({"body": json.dumps({"got": STREET})}))),
    "a repr of a repr": lambda: fail(ValueError(repr(repr(STREET)))),
    "bytes": lambda: fail(ValueError(repr(STREET.encode()))),
    "UTF-16 escapes": lambda: fail(ValueError(STREET.encode("unicode_escape").decode())),
    "a URL's query": lambda: fail(ValueError(urllib.parse.urlencode({"q": STREET, "m": MAIL}))),
    "HTML": lambda: fail(ValueError(html.escape(f"<b>{NAME}</b> & {PATH}"))),
    "base64": lambda: fail(ValueError(base64.b64encode(MAIL.encode()).decode())),
    "base64 for URLs, in words": lambda: fail(
        ValueError(f"token {base64.urlsafe_b64encode(STREET.encode()).decode()} bad")
    ),
    "hexadecimal": lambda: fail(ValueError(MAIL.encode().hex())),
    "upper case": lambda: fail(ValueError(f"{NAME.upper()} {STREET.upper()}")),
    "lower case": lambda: fail(ValueError(PAGE.lower())),
    "cut off": lambda: fail(ValueError(f"{NAME[:9]}... and {CARD[:12]}…")),
    "cut off within": lambda: fail(ValueError(f"{NAME[:10]}...{NAME[-8:]}")),
    "its last digits": lambda: fail(ValueError(f"card ending in {CARD[-8:]}")),
    "wrapped": lambda: fail(ValueError(textwrap.fill(f"the order of {NAME} with {PAGE} was refused", 20))),
    "without separators": lambda: fail(ValueError(f"card {CARD.replace('-', '')}, {CARD.replace('-', ' ')}")),
    "a number as people write it": lambda: fail(ValueError(f"{NUMBER:,} {NUMBER:_} {AMOUNT:,.2f}")),
    "a part of a value": lambda: fail(ValueError(f"no host {PAGE.split('/')[2]}, no user {NAME.split()[2]}")),
    "a file's name": lambda: zipfile.ZipFile(io.BytesIO(PATH.encode())).close(),
    "a date by itself": lambda: fail(ValueError("no rate for 2019-07-23")),
    "uuid": lambda: fail(ValueError(f"badly formed {uuid.UUID(str(ORDER['key'])).hex}")),
    "ipaddress": lambda: ipaddress.ip_address(CARD),
    "csv": lambda: fail(csv.Error(f"line contains NUL: {NAME};{MAIL}")),
    "configparser": lambda: configparser.ConfigParser().read_string(MAIL),
    "XML": lambda: fail(ValueError(f"{caught(lambda: ET.fromstring('<a>'))}: <mail>{html.escape(MAIL)}</mail>")),
    "a syntax error": lambda: ast.parse(f"x = {NAME}"),
    "binascii": lambda: fail(binascii.Error(f"Invalid base64: {MAIL!r}")),
    "an attribute": lambda: getattr(object(), MAIL),
    "a header": lambda: fail(ValueError(f"Invalid header value {STREET.encode('latin-1')!r}")),
    "a log record": lambda: fail(ValueError("order %r of %s" % (NUMBER, {"mail": MAIL}))),  # noqa: UP031
    "in a word": lambda: fail(ValueError(f"order_{NUMBER}_of_{MAIL}.json")),
    "percent-encoded": lambda: fail(ValueError(urllib.parse.quote(PATH, safe=""))),
}


@pytest.mark.parametrize("call", RAISED.values(), ids=RAISED.keys())
def test_an_error_shows_nothing_of_its_tasks_payload(call: Callable[[], object]) -> None:
    error = caught(call)
    assert shown_parts(failure_of(error, payloads=[PAYLOAD]).message) == set()
    told = redacted_traceback(error, [PAYLOAD])
    said = "\n".join(line for line in told.splitlines() if not line.startswith(("  File", "    ")))
    assert shown_parts(said) == set()


def celery_body(serialized: bytes) -> bytes:
    return json.dumps({"body": base64.b64encode(serialized).decode(), "headers": {"task": "shop.pay"}}).encode()


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(celery_body(json.dumps([[CARD, NUMBER], {"mail": MAIL}, {}]).encode()), id="Celery's, JSON"),
        pytest.param(celery_body(pickle.dumps(((CARD, NUMBER), {"mail": MAIL}))), id="Celery's, a pickle"),
        pytest.param(pickle.dumps(ORDER), id="a pickle"),
        pytest.param(json.dumps(json.dumps(json.dumps(ORDER))).encode(), id="JSON in JSON in JSON"),
        pytest.param(urllib.parse.urlencode({"card": CARD, "mail": MAIL, "n": NUMBER}).encode(), id="a form"),
        pytest.param(f"{CARD};{MAIL};{NUMBER}\n".encode(), id="CSV"),
        pytest.param(f"<order mail='{MAIL}'><card>{CARD}</card>{NUMBER}</order>".encode(), id="XML"),
        pytest.param(b"\x83\x01\xff\x00" + f"{CARD}\x00{MAIL}\x07{NUMBER}\x01".encode(), id="binary"),
    ],
)
def test_values_are_known_whatever_the_payload_is_written_in(payload: bytes) -> None:
    shown = redacted(f"card {CARD} of '{MAIL}', order {NUMBER}", [payload], environment={})
    assert shown_parts(shown) == set()


class UnpickledError(Exception):
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return fail_when_unpickled, ("4711-0815",)


def fail_when_unpickled(_text: str) -> NoReturn:
    raise AssertionError("a payload was unpickled")


def test_a_pickle_is_read_and_not_unpickled() -> None:
    assert redacted("no 4711-0815", [pickle.dumps(UnpickledError())], environment={}) == "no <payload>"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("customer_email: Field required; shipping.address.street: too long", id="names of fields"),
        pytest.param("invalid literal for int() with base 10", id="an error's own words"),
        pytest.param("division by zero at line 12 of 300000", id="other numbers"),
        pytest.param("unreadable", id="a word that begins as a value does"),
    ],
)
def test_what_is_no_value_stays(text: str) -> None:
    payload = {"customer_email": "a@b.example", "shipping": {"address": {"street": "Kleine Gasse"}}, "state": "unread"}
    assert redacted(text, [json.dumps(payload).encode()], environment={}) == text


@pytest.mark.parametrize("count", [2, 100])
def test_each_payload_of_a_batch_is_known(count: int) -> None:
    payloads = [json.dumps({"mail": f"user-{number}@example.org"}).encode() for number in range(count)]
    assert redacted(f"no user-{count - 1}@example.org", payloads, environment={}) == "no <payload>"


def test_a_secret_of_the_environment_is_hidden_however_it_is_quoted() -> None:
    environment = {"STRIPE_KEY": "Zq7/x+Kp 99'ab", "DATABASE_URL": "postgresql://u:hun%21ter2x@db/x", "PWD": "/srv/app"}
    environment |= {"KEYBOARD": "german", "TOKEN_FILE": "/nowhere", "MONKEY": "banana"}
    quoted = repr({"a": environment["STRIPE_KEY"], "b": "hun!ter2x in /srv/app, german banana"})
    assert redacted(quoted, environment=environment) == "{'a': \"***\", 'b': '*** in /srv/app, german banana'}"


def test_a_secret_in_a_file_that_a_variable_names_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("Zq7xKp99ab\n")
    assert secrets_of({"TOWLINE_TOKEN_FILE": str(tmp_path / "token")}) == ["Zq7xKp99ab"]
    assert secrets_of({"TOWLINE_TOKEN_FILE": str(tmp_path / "none"), "CONFIG_FILE": str(tmp_path / "token")}) == []


def test_redaction_is_off_where_a_pool_says_so() -> None:
    text = f"card {CARD}, password=hunter2"
    assert redacted(text, [PAYLOAD], environment={"TOWLINE_REDACT": "off"}) == text


def test_names_of_functions_stay_in_a_traceback() -> None:
    error = caught(chained)
    told = redacted_traceback(error, [json.dumps({"handler": "chained", "card": CARD, "name": NAME}).encode()])
    assert "in chained" in told
    assert 'raise RuntimeError(f"order of {NAME} was refused") from error' in told
    assert "ValueError: invalid literal for int() with base 10: '<payload>'" in told
    assert told.endswith("RuntimeError: order of <payload> was refused\n")


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        pytest.param(b'"' + b"a" * 500_000 + b'"', "a1" * 50_000, id="one long value"),
        pytest.param(json.dumps(["a" * size for size in range(4, 900)]).encode(), "a-" * 50_000, id="alike"),
        pytest.param(json.dumps(list(range(10**6, 10**6 + 40_000))).encode(), "1 000 000 " * 5_000, id="many numbers"),
        pytest.param(b"%25" * 100_000, "%25" * 30_000, id="escapes"),
        pytest.param(b"[" * 400_000, "\\" * 100_000, id="no JSON"),
    ],
)
def test_a_long_text_and_a_long_payload_take_linear_time(payload: bytes, text: str) -> None:
    """What is quadratic takes an hour for these, and holds the interpreter lock meanwhile."""
    assert redacted(text, [payload], environment={})


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        pytest.param(b'{"amount": 1234567.891}', "no change for 1234570", id="derived"),
        pytest.param(b'{"name": "Jones", "n": 12345}', "Jones has 12345", id="short"),
        pytest.param(b'{"name": "karenina"}', "no table xkareninas", id="in a longer word"),
        pytest.param(json.dumps(["x"] * 200_000 + ["4111-1111"]).encode(), "no 4111-1111", id="far behind"),
    ],
)
def test_what_is_shown_is_what_the_documentation_names(payload: bytes, text: str) -> None:
    assert redacted(text, [payload], environment={}) == text
