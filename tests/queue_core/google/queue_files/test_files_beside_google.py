"""Both readers beside Google's own: ours refuse what those refuse, and take what those take, but for the reasons here.

Every reason is a rule of `gcloud app deploy`, of Java's reader or its schema, or a value that would mean two things.
"""

import re
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queue_core.config.yaml_document import DocumentError
from queue_core.google.queue_files.entries import QueueFileEntries
from queue_core.google.queue_files.xml import read_queue_xml
from queue_core.google.queue_files.yaml import read_queue_yaml
from tests.support.google.google_queue_files import GoogleQueueFiles, Read, google_queue_files

REASONS: Final = {
    r"Refill rate must|Bucket size must|Max concurrent requests must|Target must|Can't specify": "gcloud",
    r"must not be less than zero|Maximum bucket size|the queue rate is invalid": "gcloud",
    r"Task age limit must be greater|Min backoff sec must not": "gcloud",
    r"there are two queues": "Java's reader: of two it would be left open which holds",
    r"must be 1 to 100 letters": "Java's reader and the service: Python's takes up to 499 characters, none, a newline",
    r"reads it as a number": "YAML 1.1 reads another name than is written: 010 is 8, yes is True",
    r"reads it as an octal number": "YAML 1.1 reads 010 as 8, YAML 1.2 as 10",
    r"must be a whole number": "Python's cuts 5.7 to 5, takes true for 1, 1:30 for 90",
    r"0 would lease none": "no task of such a queue could ever be leased",
    r"must be at most 2147483647": "the service's own field has 32 bits",
    r"must be a number: '(true|yes|no|nan|inf|0x5|1:30)'": "no number of seconds as it is written",
    r"must be a number and a unit \(s, m, h, d\), such as 1h or 3.5d: '(nan|inf)s'": "no number of seconds",
    r"must be a whole number, or have a unit": "Python's takes 1.5 when it reads, and refuses it when it is used",
    r"must be less than 8388608T": "more than fits into 63 bits",
    r"must be a size such as .*: '(1e3|1_0|1:30)'": "numbers of YAML 1.1 that are no size as they are written",
    r"must be 0, or a number .*: '(00|0x0)'": "the same, of a rate",
    r"must be an address": "nobody has it",
    r"email: must be one value": "Python's takes [] for the address '[]'",
    r":1:1: must be a mapping of settings \(queue, total": "Python's takes a list or a word for a file without queues",
}
XML_REASONS: Final = REASONS | {
    r": unknown setting": "the schema: Python's passes over what it does not know, a misspelt limit too",
    r"is given twice": "the schema: Python's takes the first",
    r"must be .*: ''$": "the schema: Python's passes over what is empty",
    r"text has no place here|no element may stand here|unknown attribute": "the schema",
}

WORDS = [
    "true",
    "yes",
    "no",
    "~",
    "",
    "null",
    "x",
    "[]",
    "{}",
    "[a]",
    "{a: b}",
    "''",
    '"a"',
    "!foo a",
    "2001-01-01",
    "&x y",
]
NUMBERS = [
    "0",
    "1",
    "5",
    "7",
    "-1",
    "5.5",
    "5.0",
    "010",
    "08",
    "0x5",
    "1_0",
    "1e3",
    "1:30",
    "'5'",
    "'010'",
    "nan",
    "inf",
]
NAMES = ["a", "b", "thumbs", "a-1", "default", "a_b", "ä", "'a b'", "5", "yes", "010", "true", '"a\\n"', "x" * 101]
SCALARS: Final = {
    "name": NAMES,
    "mode": ["pull", "pull", "pull", "push", "PULL", "'pull'"],
    "rate": ["5/s", "0", "0.5/m", "501/s", "5/x", "00", "5"],
    "bucket_size": NUMBERS,
    "max_concurrent_requests": NUMBERS,
    "target": ["a", "v.a", "v.a.b", "A", "-a", "1.5"],
    "task_retry_limit": NUMBERS,
    "task_age_limit": ["1d", "1.5h", "0s", "-1s", "5", "1e3s", "nans", "s"],
    "min_backoff_seconds": NUMBERS,
    "max_backoff_seconds": NUMBERS,
    "max_doublings": NUMBERS,
    "user_email": ["a@b.c", "me", "5"],
    "writer_email": ["a@b.c", "you", "''"],
    "total_storage_limit": ["5", "5M", "1.5G", "1.5", "5m", "1e3", "5 M", "9999999999T", "0.3K", "5."],
    "resume_paused_queues": ["True", "False", "yes", "off", "1", "'True'", "'yes'"],
    "application": ["a", "s~a", "a.com:b", "A"],
}
QUEUE_KEYS = ["mode", "rate", "bucket_size", "max_concurrent_requests", "target"]
RETRY_KEYS = ["task_retry_limit", "task_age_limit", "min_backoff_seconds", "max_backoff_seconds", "max_doublings"]


def pairs(keys: list[str], *, least: int = 0, most: int = 3) -> st.SearchStrategy[list[str]]:
    """Lines `key: value`: mostly legal words for the key, some that are not, and keys that nobody knows."""
    one = st.sampled_from([*keys, *keys, *keys, "nme", "Mode"]).flatmap(
        lambda key: st.sampled_from([*SCALARS.get(key, ["a"]) * 3, *WORDS]).map(lambda value: f"{key}: {value}")
    )
    unique = st.lists(one, min_size=least, max_size=most, unique_by=lambda line: line.split(":")[0])
    return unique | st.lists(one, min_size=least, max_size=most)


@st.composite
def yaml_queues(draw: st.DrawFn) -> str:
    lines = [f"name: {draw(st.sampled_from(NAMES))}"] if draw(st.integers(0, 9)) else []
    lines += draw(st.sampled_from([["mode: pull"], ["mode: pull"], ["rate: 5/s"], []]))
    lines += draw(st.just([]) | pairs(QUEUE_KEYS))
    if draw(st.booleans()):
        lines += ["retry_parameters:", *(f"  {line}" for line in draw(pairs(RETRY_KEYS)))]
    if draw(st.booleans()):
        entries = draw(st.lists(pairs(["user_email", "writer_email"], least=1, most=2), max_size=2))
        lines += ["acl:", *(f"{'- ' if not at else '  '}{line}" for entry in entries for at, line in enumerate(entry))]
    lines = draw(st.permutations(lines)) if not any(line.startswith((" ", "-")) for line in lines) else lines
    return "".join(f"{'  ' if at else '- '}{line}\n" for at, line in enumerate(lines or ["{}"]))


@st.composite
def yaml_files(draw: st.DrawFn) -> str:
    head = draw(st.just([]) | pairs(["total_storage_limit", "resume_paused_queues", "application"]))
    queues = draw(st.lists(yaml_queues(), max_size=3))
    return "".join(f"{line}\n" for line in head) + "queue:\n" + "".join(queues)


@st.composite
def xml_elements(draw: st.DrawFn, keys: list[str], most: int = 3) -> str:
    text = ""
    for key in draw(st.lists(st.sampled_from([*keys, *keys, *keys, "nme"]), max_size=most)):
        words = [word for word in SCALARS.get(key, ["a"]) if not re.search("['\"]", word)]
        text += (
            f"<{key.replace('_', '-')}>{draw(st.sampled_from([*words * 4, '', '<b/>', ' ']))}</{key.replace('_', '-')}>"
        )
    return text


@st.composite
def xml_files(draw: st.DrawFn) -> str:
    text = draw(st.just("") | xml_elements(["total_storage_limit"], 1))
    for _ in range(draw(st.integers(0, 3))):
        parts = [f"<name>{draw(st.sampled_from(['a', 'b', 'thumbs', 'a_b', '']))}</name>"]
        parts += draw(st.sampled_from([["<mode>pull</mode>"], ["<mode>pull</mode>"], ["<rate>5/s</rate>"], []]))
        parts += [draw(st.just("") | xml_elements(QUEUE_KEYS))]
        if draw(st.booleans()):
            parts += [f"<retry-parameters>{draw(xml_elements(RETRY_KEYS))}</retry-parameters>"]
        if draw(st.booleans()):
            parts += [f"<acl>{draw(xml_elements(['user_email', 'writer_email']))}</acl>"]
        text += f"<queue>{''.join(draw(st.permutations(parts)))}</queue>"
    return f"<queue-entries>{text}</queue-entries>"


_LIMITED: Final = (
    "<queue><name>a</name><mode>pull</mode>"
    "<retry-parameters><task-retry-limit>{}</task-retry-limit></retry-parameters></queue>"
)


@pytest.fixture(scope="module")
def google() -> GoogleQueueFiles:
    return google_queue_files()


def read_of(entries: QueueFileEntries) -> Read:
    return Read(
        tuple((queue.name, queue.max_leases, queue.user_emails, queue.writer_emails) for queue in entries.queues),
        entries.push_queues,
        entries.total_storage_limit_bytes,
        entries.resume_paused_queues,
    )


def unexplained(error: DocumentError, reasons: dict[str, str]) -> list[str]:
    return [line for line in error.lines if not any(re.search(reason, line) for reason in reasons)]


@settings(max_examples=300, deadline=None)
@given(text=yaml_files())
def test_a_queue_yaml_is_read_as_google_reads_it(google: GoogleQueueFiles, text: str) -> None:
    theirs = google.yaml(text)
    try:
        ours = read_of(read_queue_yaml(text))
    except DocumentError as error:
        assert theirs is None or unexplained(error, REASONS) == []
    else:
        assert ours == theirs


@settings(max_examples=200, deadline=None)
@given(text=xml_files())
@example(text=f"<queue-entries>{_LIMITED.format('010')}</queue-entries>")
@example(text=f"<queue-entries>{_LIMITED.format('0x5')}</queue-entries>")
def test_a_queue_xml_is_read_as_google_reads_it(google: GoogleQueueFiles, text: str) -> None:
    yaml = google.yaml_of_xml(text)
    theirs = None if yaml is None else google.yaml(yaml)
    try:
        ours = read_of(read_queue_xml(text.encode()))
    except DocumentError as error:
        assert theirs is None or unexplained(error, XML_REASONS) == []
    else:
        assert ours == theirs
