"""A queue.xml: the same rules in its own words, in any encoding and order, and nothing that expands."""

import pytest

from queue_core.config.yaml_document import DocumentError
from queue_core.google.queue_files.entries import QueueFileEntries
from queue_core.google.queue_files.xml import read_queue_xml
from queue_core.google.queue_files.yaml import read_queue_yaml
from queue_core.task import QueueSpec

WHOLE = """\
<?xml version="1.0" encoding="ENCODING"?>
<queue-entries>
  <!-- in any order -->
  <queue>
    <mode>pull</mode>
    <acl>
      <user-email>worker@example.com</user-email>
      <writer-email>web@example.com</writer-email>
      <user-email> second@example.com </user-email>
    </acl>
    <name>thumbs</name>
    <retry-parameters><task-retry-limit>7</task-retry-limit></retry-parameters>
  </queue>
  <queue>
    <name>mail</name>
    <rate>10.5/m</rate>
    <bucket-size>40</bucket-size>
    <max-concurrent-requests>10</max-concurrent-requests>
    <target>v1.mailer</target>
    <retry-parameters>
      <task-retry-limit>0</task-retry-limit>
      <task-age-limit>2d</task-age-limit>
      <min-backoff-seconds>10</min-backoff-seconds>
      <max-backoff-seconds>200.5</max-backoff-seconds>
      <max-doublings>0</max-doublings>
    </retry-parameters>
  </queue>
  <total-storage-limit>120M</total-storage-limit>
</queue-entries>
"""
THUMBS = QueueSpec(
    "thumbs",
    max_leases=7,
    on_exhausted="delete",
    user_emails=("worker@example.com", "second@example.com"),
    writer_emails=("web@example.com",),
)
ENTRIES = QueueFileEntries((THUMBS,), ("mail",), 120 << 20)


def problems(data: str | bytes) -> list[str]:
    with pytest.raises(DocumentError) as raised:
        read_queue_xml(data.encode() if isinstance(data, str) else data)
    return list(raised.value.lines)


def one_queue(inside: str) -> str:
    return f"<queue-entries>\n<queue><name>thumbs</name><mode>pull</mode>\n{inside}</queue></queue-entries>"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "iso-8859-1", "us-ascii", "windows-1252"])
def test_a_whole_file_is_read_in_the_encoding_it_names(encoding: str) -> None:
    text = WHOLE.replace("ENCODING", encoding.removesuffix("-sig"))
    assert read_queue_xml(text.encode(encoding)) == ENTRIES


def test_both_spellings_mean_the_same() -> None:
    assert read_queue_xml(WHOLE.replace("ENCODING", "utf-8").replace("email", "email").encode()) == ENTRIES
    underscored = one_queue("<retry_parameters><task_retry_limit>3</task_retry_limit></retry_parameters>")
    assert read_queue_xml(underscored.encode()) == read_queue_xml(underscored.replace("_", "-").encode())


def test_namespaces_and_comments_do_not_matter() -> None:
    text = one_queue("<acl><user-email>a@<!-- at -->b</user-email></acl>").replace(
        "<queue-entries>",
        '<queue-entries xmlns="http://appengine.google.com/ns/queue" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
        ' xsi:schemaLocation="a b">',
    )
    assert read_queue_xml(text.encode()).queues[0].user_emails == ("a@b",)


@pytest.mark.parametrize("text", ["<queue-entries/>", "<queue-entries></queue-entries>\n"])
def test_a_file_may_say_that_there_are_no_queues(text: str) -> None:
    assert read_queue_xml(text.encode()) == QueueFileEntries()


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("<rate>5/s</rate>", "Refill rate must not be specified for pull-based queue"),
        ("<bucket-size>5</bucket-size>", "Bucket size must not be specified for pull-based queue"),
        ("<target>a</target>", "Target must not be specified for pull-based queue"),
        (
            "<max-concurrent-requests>5</max-concurrent-requests>",
            "Max concurrent requests must not be specified for pull-based queue",
        ),
        (
            "<retry-parameters><max-doublings>5</max-doublings></retry-parameters>",
            "Can't specify max_doublings for a pull queue",
        ),
        ("<retry-parameters><task-retry-limit>0</task-retry-limit></retry-parameters>", "0 would lease none"),
        ("<mode>pull</mode>", "given twice"),
        ("<rat>5/s</rat>", "did you mean 'rate'?"),
        ("<acl><user-mail>a</user-mail></acl>", "did you mean 'user-email'?"),
        ("text", "no place here: 'text'"),
        ("<acl><user-email></user-email></acl>", "address"),
        ("<acl><user-email><b/>a</user-email></acl>", "no element may stand here"),
        ("<queue/>", "unknown setting"),
    ],
)
def test_a_mistake_is_told_with_line_and_column(inside: str, message: str) -> None:
    (line,) = problems(one_queue(inside))
    assert line.startswith("queue.xml:3:")
    assert message in line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("<queue-entries>\n <queue><name>a</name></queue></queue-entries>", "2:2: queue[0]: Refill rate must be"),
        (
            "<queue-entries><queue><rate>1/s</rate>\n<name>a</name><acl/></queue></queue-entries>",
            "2:15: queue[0].acl: is not defined for push queues",
        ),
        ("<queue-entry/>", "1:1: <queue-entry>: the outermost element must be <queue-entries>"),
        ("<queue-entries a='b'/>", "1:1: <queue-entries>: unknown attribute 'a'"),
        ("", "1:1: not a queue.xml: no element found"),
        ("<queue-entries>", "1:16: not a queue.xml: no element found"),
        ("<queue-entries>\n</queue>", "2:3: not a queue.xml: mismatched tag"),
        ("<queue-entries>\n&nbsp;</queue-entries>", "2:1: not a queue.xml: undefined entity"),
        ("<q:queue-entries/>", "1:1: not a queue.xml: unbound prefix"),
        ("<?xml version='1.0' encoding='klingon'?><queue-entries/>", "1:1: the encoding can't be read"),
        ("<?xml version='1.0' encoding='utf-7'?><queue-entries/>", "1:1: the encoding can't be read"),
    ],
)
def test_what_is_no_queue_file_is_told_where_it_goes_wrong(text: str, line: str) -> None:
    assert problems(text)[0].startswith(f"queue.xml:{line}")


@pytest.mark.parametrize(
    "doctype",
    [
        "<!DOCTYPE queue-entries>",
        "<!DOCTYPE queue-entries SYSTEM 'file:///etc/passwd'>",
        "<!DOCTYPE queue-entries PUBLIC '-//Oracle//DTD' 'http://127.0.0.1:1/queue.dtd'>",
        "<!DOCTYPE a [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;&a;&a;&a;&a;'>]>",
        "<!DOCTYPE a [<!ENTITY a SYSTEM 'file:///etc/passwd'>]>",
        "<!DOCTYPE a [<!ENTITY % p SYSTEM 'http://127.0.0.1:1/x'>%p;]>",
    ],
)
def test_a_document_type_is_refused_before_anything_in_it_counts(doctype: str) -> None:
    (line,) = problems(f"{doctype}\n<queue-entries><queue><name>&a;</name></queue></queue-entries>")
    assert "<!DOCTYPE ...>" in line


def test_depth_and_size_are_bounded() -> None:
    deep = problems(one_queue(f"<acl>{'<a>' * 9000}{'</a>' * 9000}</acl>"))
    assert [line.split(": ")[-1] for line in deep] == ["unknown setting", "no element may stand here"]
    assert "at most 262144 bytes" in problems(" " * 300_000)[0]
    assert "more than 20000 elements" in problems("<queue-entries>" + "<a/>" * 20_000)[0]


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = "<queue-entries>\n<queue><mode>pull</mode>\n<rate/>\n<acl>\nx</acl>\n</queue>\n<queues/>\n</queue-entries>"
    assert [line.split(":")[1] for line in problems(text)] == ["2", "3", "3", "5", "7"]


def test_the_same_queues_in_either_format_are_the_same_values() -> None:
    yaml = (
        "total_storage_limit: 120M\nqueue:\n- {name: a, mode: pull, acl: [{user_email: x}]}\n- {name: b, rate: 5/s}\n"
    )
    xml = (
        "<queue-entries><total-storage-limit>120M</total-storage-limit><queue><name>a</name><mode>pull</mode>"
        "<acl><user-email>x</user-email></acl></queue><queue><name>b</name><rate>5/s</rate></queue></queue-entries>"
    )
    assert read_queue_xml(xml.encode()) == read_queue_yaml(yaml)
