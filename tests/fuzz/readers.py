"""The readers: what each is given, and what it must make of it. A check returns whether the input was right."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

from queue_core.config.yaml_document import DocumentError
from queue_core.google.appengine import messages
from queue_core.google.appengine.codec import CodecError, decode, encode
from queue_core.google.appengine.codes import TaskQueueErrorCode
from queue_core.google.appengine.schema import MessageTable, ProtoRecord
from queue_core.google.queue_files.entries import QueueFileEntries
from queue_core.google.queue_files.xml import read_queue_xml
from queue_core.google.queue_files.yaml import read_queue_yaml
from queue_core.task import ANY, QueueSpec
from queue_core.unit.service import QueueService
from tests.fuzz.mutation import mutated
from tests.queue_core.google.appengine.test_codec import GOOGLES, mangled
from tests.queue_core.google.queue_files.test_files_fuzz import (
    ENCODINGS,
    XML,
    XML_PARTS,
    YAML,
    YAML_PARTS,
    altered,
)
from tests.queue_core.google.queue_files.test_files_fuzz import (
    check as check_queue_file,
)
from tests.support.sdks import recorded
from tests.support.servers import a_server, read_reply, request

Input = tuple[str, bytes]
"""What it is for, such as a message's name, and the bytes."""
Check = Callable[[Input], bool]
TABLES = {name: message for name, (message, _) in GOOGLES.items()}


@dataclass(frozen=True, slots=True)
class Reader:
    """One reader and one way to make inputs for it, of which exactly one is given."""

    name: str
    check: Check
    strategy: st.SearchStrategy[Input] | None = None
    make: Callable[[Random], Input] | None = None


# -- the codec --------------------------------------------------------------------------------------------------------


def check_codec(given: Input) -> bool:
    """A record that can be written, or a `CodecError`."""
    message = TABLES[given[0]]
    try:
        record = decode(message, given[1])
    except CodecError as error:
        assert str(error)
        return False
    assert decode(message, encode(message, record)) is not None
    return True


def _mangled(name: str) -> st.SearchStrategy[Input]:
    return mangled(TABLES[name]).map(lambda data: (name, data))


def _codec_inputs() -> Callable[[Random], Input]:
    sent = [call.request for call in recorded.read(recorded.JAVA)]
    told = [call.answer for call in recorded.read(recorded.JAVA)]
    inside = [decode(messages.REMOTE_REQUEST, data).octets("request") for data in sent]
    all_of_them = [*sent, *told, *inside]
    names = sorted(TABLES)
    return lambda chance: (
        chance.choice(names),
        mutated(chance.choice(all_of_them), all_of_them, chance),
    )


# -- the files --------------------------------------------------------------------------------------------------------


def check_yaml(given: Input) -> bool:
    """Queues, or mistakes with their places."""
    text = given[1].decode("utf-8", "surrogatepass")
    return _is_right(lambda: read_queue_yaml(text))


def check_xml(given: Input) -> bool:
    """Queues, or mistakes with their places."""
    return _is_right(lambda: read_queue_xml(given[1]))


def _is_right(read: Callable[[], QueueFileEntries]) -> bool:
    check_queue_file(read)
    try:
        read()
    except DocumentError:
        return False
    return True


def _yaml_text() -> st.SearchStrategy[Input]:
    text = altered(YAML, YAML_PARTS) | st.lists(YAML_PARTS, max_size=30).map("".join)
    return text.map(lambda given: ("", given.encode("utf-8", "surrogatepass")))


def _xml_bytes() -> st.SearchStrategy[Input]:
    text = altered(XML, XML_PARTS) | st.lists(XML_PARTS, max_size=30).map("".join)
    return st.tuples(text, ENCODINGS).map(lambda given: ("", given[0].encode(given[1], "replace")))


def _changed(*right: bytes) -> Callable[[Random], Input]:
    return lambda chance: ("", mutated(chance.choice(right), right, chance))


def _changed_text(*right: str) -> Callable[[Random], Input]:
    data = [text.encode() for text in right]

    def make(chance: Random) -> Input:
        text = mutated(chance.choice(data), data, chance).decode("utf-8", "replace")
        return "", text.encode()

    return make


# -- the door ---------------------------------------------------------------------------------------------------------

HEADERS = (("content-type", "application/octet-stream"),)
ADMIN: Sequence[tuple[str, MessageTable, ProtoRecord]] = (
    ("FetchQueues", messages.QUEUES_REQUEST, ProtoRecord(max_rows=10)),
    ("QueryTasks", messages.TASKS_REQUEST, ProtoRecord(queue_name=b"story", max_rows=10, start_task_name=b"one")),
    ("FetchTask", messages.TASK_REQUEST, ProtoRecord(queue_name=b"story", task_name=b"one")),
    ("PauseQueue", messages.PAUSE_REQUEST, ProtoRecord(queue_name=b"story", pause=False)),
    (
        "UpdateQueue",
        messages.UPDATE_QUEUE_REQUEST,
        ProtoRecord(queue_name=b"story", bucket_refill_per_second=1.0, bucket_capacity=1, mode=1),
    ),
    ("DeleteQueue", messages.QUEUE_REQUEST, ProtoRecord(app_id=b"", queue_name=b"other")),
    ("Add", messages.ADD_REQUEST, ProtoRecord(queue_name=b"story", task_name=b"", eta_usec=1, body=b"x", mode=1)),
)


@contextmanager
def door() -> Iterator[Reader]:
    """`/rpc_http` of a running server: 200 and an answer that is no accident, whatever the body."""
    with a_server() as server, server.connect() as connection:
        service = QueueService(server.store)
        counted = [0]

        def check(given: Input) -> bool:
            if counted[0] % 500 == 0:
                service.run(lambda turn: turn.put_queue(QueueSpec("story", on_exhausted="delete")))
                service.run(lambda turn: turn.purge("story", ANY, dead="keep"))
            counted[0] += 1
            connection.sendall(
                request("POST", "/rpc_http", given[1], headers=(("content-type", "application/octet-stream"),))
            )
            reply = read_reply(connection)
            assert reply.status == 200, reply
            told = decode(messages.REMOTE_RESPONSE, reply.body)
            error = told.record("application_error")
            assert error is None or error.integer("code") != TaskQueueErrorCode.INTERNAL_ERROR, error
            assert ("response" in told) + (error is not None) + ("rpc_error" in told) == 1
            return "response" in told

        yield Reader("/rpc_http of a server", check, make=_bodies())


def _bodies() -> Callable[[Random], Input]:
    sent = [decode(messages.REMOTE_REQUEST, call.request) for call in recorded.read(recorded.JAVA)]
    sent += [
        ProtoRecord(service_name="taskqueue", method=method, request=encode(table, record))
        for method, table, record in ADMIN
    ]
    whole = [encode(messages.REMOTE_REQUEST, one) for one in sent]
    inside = [one.octets("request") for one in sent]

    def make(chance: Random) -> Input:
        if chance.random() < 0.3:
            return "", mutated(chance.choice(whole), whole, chance)
        one = chance.choice(sent)
        changed = ProtoRecord(one | {"request": mutated(one.octets("request"), inside, chance)})
        if chance.random() < 0.1:
            changed["method"] = chance.choice(sent).text("method")
        return "", encode(messages.REMOTE_REQUEST, changed)

    return make


@contextmanager
def readers() -> Iterator[list[Reader]]:
    """All of them; a server runs meanwhile."""
    with door() as last:
        yield [
            Reader("codec, drawn", check_codec, strategy=st.sampled_from(sorted(TABLES)).flatmap(_mangled)),
            Reader("codec, changed", check_codec, make=_codec_inputs()),
            Reader("queue.yaml, drawn", check_yaml, strategy=_yaml_text()),
            Reader("queue.yaml, changed", check_yaml, make=_changed_text(YAML)),
            Reader("queue.xml, drawn", check_xml, strategy=_xml_bytes()),
            Reader("queue.xml, changed", check_xml, make=_changed(XML.encode(), XML.encode("utf-16"))),
            last,
        ]
