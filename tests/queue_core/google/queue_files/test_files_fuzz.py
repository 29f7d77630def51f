"""Both readers on any input: they return valid values, or an error with a place in every line."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queue_core.config.yaml_document import DocumentError
from queue_core.google.queue_files.entries import QueueFileEntries
from queue_core.google.queue_files.xml import read_queue_xml
from queue_core.google.queue_files.yaml import read_queue_yaml
from queue_core.verbs.validation import check_queue_spec

PLACED = re.compile(r"queue\.(yaml|xml):[1-9][0-9]*:[1-9][0-9]*: \S", re.DOTALL)
SECONDS = timedelta(seconds=10)

YAML = """\
application: a
total_storage_limit: 120M
resume_paused_queues: False
queue:
- name: thumbs
  mode: pull
  retry_parameters: {task_retry_limit: 7}
  acl:
  - user_email: worker@example.com
    writer_email: "web@example.com"
- name: mail
  rate: 10.5/m
  bucket_size: 40
  retry_parameters:
    task_age_limit: 2d
    min_backoff_seconds: 1.5
"""
XML = """\
<?xml version="1.0" encoding="utf-8"?>
<queue-entries>
  <total-storage-limit>120M</total-storage-limit>
  <queue><name>thumbs</name><mode>pull</mode>
    <acl><user-email>worker@example.com</user-email><writer-email>web@example.com</writer-email></acl>
    <retry-parameters><task-retry-limit>7</task-retry-limit></retry-parameters>
  </queue>
  <queue><name>mail</name><rate>10.5/m</rate><bucket-size>40</bucket-size></queue>
</queue-entries>
"""
YAML_WORDS = [
    "- ",
    "? ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "&a ",
    "*a",
    "!!int ",
    "!x ",
    "|\n",
    ">-\n",
    "---\n",
    "...\n",
    "'",
    '"',
]
YAML_WORDS += ["%YAML 1.1\n", "\t", "#", "<<: ", "~", "\x00", "\u2028", "\ufeff", "\ud800", "9" * 400]
YAML_PARTS = st.sampled_from(re.findall(r"\S+|\s+", YAML) + YAML_WORDS)
XML_WORDS = [
    "<![CDATA[",
    "]]>",
    "<!--",
    "-->",
    "&#0;",
    "&#x41;",
    "&lt;",
    "&a;",
    "<?x y?>",
    "<a b='c'>",
    "</a>",
    "<a:name>",
]
XML_WORDS += ["<!DOCTYPE a [<!ENTITY a 'b'>]>", "xmlns:a='b'", "\x00", "\ufeff", "9" * 400]
XML_PARTS = st.sampled_from(re.findall(r"<[^>]*>|[^<]+", XML) + XML_WORDS)
ENCODINGS = st.sampled_from(["utf-8", "utf-16", "utf-16-be", "utf-8-sig", "utf-32", "latin-1", "cp037"])


@st.composite
def altered(draw: st.DrawFn, text: str, parts: st.SearchStrategy[str]) -> str:
    """The text with pieces of it cut out, put elsewhere, and others put between."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 30)))
        text = text[:start] + draw(parts | st.just(text[start:end] * 2) | st.text(max_size=4)) + text[end:]
    return text


def check(read: Callable[[], QueueFileEntries]) -> None:
    try:
        entries = read()
    except DocumentError as error:
        assert error.lines
        assert all(PLACED.match(line) and line.isprintable() and len(line) < 1000 for line in error.lines)
        return
    names = [spec.name for spec in entries.queues] + list(entries.push_queues)
    assert len(set(names)) == len(names)
    assert all(names)
    for spec in entries.queues:
        check_queue_spec(spec)
        assert (spec.on_exhausted, spec.paused) == ("delete", False)
    assert entries.total_storage_limit_bytes is None or 0 <= entries.total_storage_limit_bytes < 1 << 63


@settings(max_examples=300, deadline=SECONDS)
@given(altered(YAML, YAML_PARTS) | st.lists(YAML_PARTS, max_size=30).map("".join) | st.text(max_size=200))
@example("[" * 100_000)
@example("- " * 100_000)
@example("{a: " * 60_000)
@example("? " * 100_000)
@example("'" + "\n" * 200_000)
@example("a: " + "9" * 200_000)
@example("total_storage_limit: " + "9" * 200_000 + "T")
@example("queue:\n" + "- name: a\n" * 20_000)
@example("!" * 100_000)
@example("\ud800")
@example('"a\\nb\\e[31m": 1\nqueue: !%0Ax y')
def test_any_text_is_a_queue_yaml_or_a_mistake(text: str) -> None:
    check(lambda: read_queue_yaml(text))


@settings(max_examples=300, deadline=SECONDS)
@given(altered(XML, XML_PARTS) | st.lists(XML_PARTS, max_size=30).map("".join) | st.text(max_size=100), ENCODINGS)
@example("<a>" * 80_000, "utf-8")
@example("<queue-entries>" + "<queue/>" * 30_000 + "</queue-entries>", "utf-8")
@example("<queue-entries " + " ".join(f"a{n}='b'" for n in range(20_000)) + "/>", "utf-8")
@example("<queue-entries>" + "&#65;" * 50_000 + "</queue-entries>", "utf-8")
@example("<queue-entries><queue><name>" + "9" * 200_000 + "</name></queue></queue-entries>", "utf-8")
@example("<?xml version='1.0' encoding='cp037'?><queue-entries/>", "cp037")
@example("<?xml version='1.0' encoding='hex'?><queue-entries/>", "utf-8")
@example("<?xml version='1.0' encoding='idna'?><queue-entries/>", "utf-8")
def test_any_text_in_any_encoding_is_a_queue_xml_or_a_mistake(text: str, encoding: str) -> None:
    check(lambda: read_queue_xml(text.encode(encoding, "replace")))


@settings(max_examples=200, deadline=SECONDS)
@given(st.binary(max_size=200) | st.binary(max_size=40).map(lambda data: XML.encode()[:60] + data + XML.encode()[60:]))
def test_any_bytes_are_a_queue_xml_or_a_mistake(data: bytes) -> None:
    check(lambda: read_queue_xml(data))


@pytest.mark.parametrize("read", [lambda: read_queue_yaml(YAML), lambda: read_queue_xml(XML.encode())])
def test_what_is_altered_is_right_before(read: Callable[[], QueueFileEntries]) -> None:
    assert [spec.name for spec in read().queues] == ["thumbs"]
