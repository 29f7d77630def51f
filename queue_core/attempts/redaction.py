"""Redaction: attempts and log lines show no payload, in whatever form an error quotes it, and no secret. Pure."""

import base64
import json
import re
import urllib.parse
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import Final

SHORTEST_REDACTED_CHARACTERS: Final = 4
"""Payloads shorter than this are not redacted: they would match unrelated text."""
SHORTEST_QUOTED_BEGINNING: Final = 32
"""Characters of a payload's beginning that count as quoted from it: long quotes are cut, by errors and above."""
MAX_DOCUMENT_BYTES: Final = 65_536
"""Payloads longer than this are not read as JSON: an error quotes little of them."""
MAX_NAMED_SECRETS: Final = 50
"""Values of one payload that are looked for because of their names, at most."""
_KEYS: Final = (
    "password|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credentials?|signature"
)
_TOKENS: Final = (
    r"eyJ[\w-]{8,}\.[\w-]+\.[\w-]*|gh[opsru]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|sk_(?:live|test)_\w{10,}"
    r"|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
)
_NAME: Final = re.compile(rf"(?i){_KEYS}")
# Each is linear in the text: none begins with a repeat, and no two repeats in a row take the same characters.
_SECRETS: Final = (
    # A password with an unescaped slash goes up to the `@`; a port before a path is no password.
    (re.compile(r"(?<=://)(?:[^\s/?#]{1,500}|[^\s/?#@:\[]{0,200}:(?!\d+[/?#,\s])[^\s@]{1,300})(?=@)"), "***"),
    (
        re.compile(r"(?i)\b(authorization['\"]?\s*[=:]\s*['\"]?(?:(?:basic|bearer|digest|token|key)\s+)?)[^\s'\",;]+"),
        r"\1***",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), r"\1 ***"),
    (
        re.compile(rf"(?i)({_KEYS})(['\"]?\s*[=:]\s*)(?:(?P<quote>['\"])(?:\\.|(?!(?P=quote))[^\\])+|[^\s'\",;&]+)"),
        r"\1\2\3***",
    ),
    (re.compile(rf"(?<![\w-])(?:{_TOKENS})"), "***"),
    # pydantic quotes at most 50 characters of what it was given.
    (re.compile(r"(?<=\binput_value=)[\s\S]{1,200}?(?=, input_type=)"), "***"),
)


def redacted(text: str, payloads: Sequence[bytes] = ()) -> str:
    """Return a text with quoted payloads replaced by `<payload>`, and what is or looks like a secret by `***`.

    A value of a JSON payload is a secret if its name there says so, such as `password`. Other values stay: people need
    to read which file it was.
    """
    for payload in payloads:
        document = _document(payload)
        text = _without(text, _quotations(payload, document), "<payload>")
        for secret in islice(_secrets_of(document), MAX_NAMED_SECRETS):
            text = _without(text, _quotations(secret.encode("utf-8", "surrogatepass"), None), "***")
    for pattern, shown in _SECRETS:
        text = pattern.sub(shown, text)
    return text


def _document(payload: bytes) -> object:
    """Return a payload's JSON; None for any other."""
    if len(payload) > MAX_DOCUMENT_BYTES:
        return None
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return None


def _quotations(payload: bytes, document: object) -> list[str]:
    """Return the forms in which a message may quote a payload, longest first.

    They are its text, by `repr`, as JSON, stripped, encoded, and its JSON as Python has and as others print it.
    """
    text = payload.decode(errors="replace")
    forms = {text, repr(payload)[2:-1], repr(text)[1:-1], ascii(text)[1:-1], json.dumps(text)[1:-1], text.strip()}
    forms |= {repr(text.strip())[1:-1], urllib.parse.quote(payload), urllib.parse.quote_plus(payload)}
    forms |= {base64.b64encode(payload).decode(), base64.urlsafe_b64encode(payload).decode()}
    if isinstance(document, str):
        forms |= {document, repr(document)[1:-1]}
    elif isinstance(document, dict | list):
        forms.add(str(document))
        for ascii_only in (True, False):
            forms.add(json.dumps(document, ensure_ascii=ascii_only, separators=(",", ":")))
            forms |= {json.dumps(document, ensure_ascii=ascii_only, indent=indent) for indent in (None, 2, 4)}
    return sorted((form for form in forms if len(form) >= SHORTEST_REDACTED_CHARACTERS), key=len, reverse=True)


def _secrets_of(document: object) -> Iterator[str]:
    """Yield the texts and numbers of a JSON document that their names call secret."""
    below: list[tuple[object, bool]] = [(document, False)]
    while below:
        part, is_secret = below.pop()
        if isinstance(part, dict):
            below += [(value, is_secret or _NAME.search(name) is not None) for name, value in part.items()]
        elif isinstance(part, list):
            below += [(value, is_secret) for value in part]
        elif is_secret and isinstance(part, str | int | float) and not isinstance(part, bool):
            yield str(part)


def _without(text: str, quotations: Sequence[str], shown: str) -> str:
    """Return the text without quotations, and without the beginnings of them that are long enough."""
    for quoted in quotations:
        text = text.replace(quoted, shown)
    for beginning in dict.fromkeys(quoted[:SHORTEST_QUOTED_BEGINNING] for quoted in quotations):
        if len(beginning) < SHORTEST_QUOTED_BEGINNING:
            continue
        at = text.find(beginning)
        while at >= 0:  # two forms may begin alike: the one that goes on longest is the one that is quoted
            end = at + max(_length_alike(text, at, quoted) for quoted in quotations)
            text = f"{text[:at]}{shown}{text[end:]}"
            at = text.find(beginning, at + 1)
    return text


def _length_alike(text: str, at: int, quoted: str) -> int:
    """Return how many characters of the text are those of a quotation, from a position on."""
    there = text[at : at + len(quoted)]
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(there, quoted, strict=False)))
