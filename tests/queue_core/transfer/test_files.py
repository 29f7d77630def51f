"""The file of an export: its contents, what a reader refuses, and how a truncated file is completed."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from queue_core.attempts.attempt import Attempt
from queue_core.clock import Instant, SystemClock
from queue_core.errors import BadFileError, CutShortError
from queue_core.limits import LARGEST_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES
from queue_core.store import Store
from queue_core.task import Progress, StoredTask, TaskState
from queue_core.transfer.format import Footer, NameLine, footer_line, name_line, record_of, task_line
from queue_core.verbs import HeldName
from tests.support.stores.stores import opened
from tests.support.stores.transfers import ODD_PAYLOADS, QUEUE, checked, exported, fill, lines_of

NOW = SystemClock().now()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with a queue that has everything in it."""
    with opened("sqlite", tmp_path) as found:
        fill(found, longest=9000)
        yield found


def rewritten(path: Path, change: Callable[[list[dict[str, object]]], object]) -> Path:
    """The file with its lines changed, and an end that fits them."""
    lines = lines_of(path)[:-1]
    change(lines)
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    kinds = [line.get("kind") for line in lines]
    footer = Footer(kinds.count("task"), kinds.count("name"), hashlib.sha256(body).hexdigest())
    path.write_bytes(body + footer_line(footer))
    return path


# -- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload", [*ODD_PAYLOADS, b"\xff" * MAX_PAYLOAD_BYTES, b"\x01" * MAX_PAYLOAD_BYTES, b"t" * (2 << 20)]
)
def test_a_payload_comes_back_from_its_line_byte_for_byte(payload: bytes) -> None:
    task = StoredTask(1, QUEUE, payload, NOW, NOW, ready_at=NOW)
    line = task_line(task)
    assert record_of(line, now=NOW) == task
    assert line.count(b"\n") == 1


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(StoredTask(1, QUEUE, b"", NOW, NOW, ready_at=NOW), id="plain"),
        pytest.param(StoredTask(2, QUEUE, b"", Instant(0), Instant(0), ready_at=Instant(0)), id="at the epoch"),
        pytest.param(
            StoredTask(3, QUEUE, b"", NOW, NOW, "name", 'a "tag"\n', TaskState.DELAYED, ready_at=NOW), id="delayed"
        ),
        pytest.param(
            StoredTask(4, QUEUE, b"", NOW, NOW, None, None, TaskState.LEASED, 2, NOW, Instant(5), "w", "", (NOW, NOW)),
            id="leased",
        ),
        pytest.param(
            StoredTask(5, QUEUE, b"", NOW, NOW, None, None, TaskState.DEAD, 0, NOW, NOW, "w", "größe ✓"),
            id="dead, redriven",
        ),
        pytest.param(StoredTask(6, QUEUE, b"", NOW, NOW, ready_at=NOW, max_leases=3), id="with a bound of its own"),
        pytest.param(
            StoredTask(7, QUEUE, b"", NOW, NOW, None, None, TaskState.DELAYED, ready_at=NOW, spent=(NOW,)),
            id="postponed",
        ),
        pytest.param(
            StoredTask(
                8,
                QUEUE,
                b"",
                NOW,
                NOW,
                leases=2,
                leased_at=NOW,
                ready_at=NOW,
                headers={"trace-id": 'ü"'},
                attempts=(
                    Attempt(1, "w", Instant(5), NOW, "expired"),
                    Attempt(2, "", NOW, NOW, "raised", "ValueError", "größe\n", "tasks.py:1", "host"),
                ),
                progress=Progress(0.5, "page 1"),
                checkpoint=b"\x00\xff",
            ),
            id="with headers, attempts, progress and a checkpoint",
        ),
        pytest.param(
            StoredTask(9, QUEUE, b"", NOW, NOW, ready_at=NOW, progress=Progress(0.0), checkpoint=b""),
            id="with an empty checkpoint",
        ),
    ],
)
def test_a_task_comes_back_from_its_line_as_it_was(task: StoredTask) -> None:
    assert record_of(task_line(task), now=NOW) == task


def test_text_is_written_as_text_and_bytes_as_base64_each_under_its_own_field() -> None:
    task = StoredTask(1, QUEUE, "größe".encode(), NOW, NOW, ready_at=NOW)
    assert json.loads(task_line(task))["payload"] == "größe"
    assert json.loads(task_line(replace(task, payload=b"\xff")))["payload_base64"] == "/w=="


def test_a_held_name_comes_back_from_its_line() -> None:
    held = HeldName("once", NOW)
    assert record_of(name_line(QUEUE, held), now=NOW) == NameLine(QUEUE, held)


# -- what is refused --------------------------------------------------------------------------------------------------

Change = Callable[[dict[str, object]], object]


ATTEMPT = {"lease_number": 1, "began_at": 1, "ended_at": 2, "outcome": "raised"}


def _set(**fields: object) -> Change:
    return lambda line: line.update(fields)


def _without(field: str) -> Change:
    return lambda line: line.pop(field)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param(_set(state="in flight"), "state", id="unknown state"),
        pytest.param(_set(tag=""), "tag", id="empty tag"),
        pytest.param(_set(tag=None), "tag", id="tag null"),
        pytest.param(_set(tag="é" * 251), "tag", id="tag over 500 bytes"),
        pytest.param(_set(name="no spaces"), "name", id="name out of form"),
        pytest.param(_set(name="_42"), "name", id="name the queue chooses"),
        pytest.param(_set(name="n" * 501), "name", id="name over 500 characters"),
        pytest.param(_set(eta="soon"), "eta", id="eta no number"),
        pytest.param(_set(eta=-1), "eta", id="eta before 1970"),
        pytest.param(_set(eta=NOW + 3651 * 86_400_000_000), "eta", id="eta over 10 years ahead"),
        pytest.param(_set(eta=1.5), "eta", id="eta with a fraction"),
        pytest.param(_set(eta=True), "eta", id="eta a flag"),
        pytest.param(_set(max_leases=0), "max_leases", id="no lease at all"),
        pytest.param(_set(max_leases=1 << 31), "max_leases", id="more leases than a store counts"),
        pytest.param(_set(max_leases=None), "max_leases", id="a bound of null"),
        pytest.param(_set(added_at=10**18), "added_at", id="instant over 17 digits"),
        pytest.param(_set(ready_at=5), "ready_at", id="ready at another time than its eta"),
        pytest.param(_set(leases=-1, leased_at=1), "leases", id="negative leases"),
        pytest.param(_set(leases=1), "leased_at", id="leases without a grant"),
        pytest.param(_set(state="in_flight"), "leases", id="in flight but never leased"),
        pytest.param(_set(leased_at=1, spent=["x"]), "spent", id="spent no instants"),
        pytest.param(_set(leased_at=1, worker="w" * 201), "worker", id="worker over 200 characters"),
        pytest.param(_set(reason="r" * 2001), "reason", id="reason over 2,000 characters"),
        pytest.param(_set(payload="x" * (LARGEST_PAYLOAD_BYTES + 1)), "payload", id="payload over 64 MiB"),
        pytest.param(_set(payload_base64="AA=="), "payload_base64", id="two payloads"),
        pytest.param(_without("payload"), "payload", id="no payload"),
        pytest.param(_set(queue="elsewhere"), "queue", id="queue not of the header"),
        pytest.param(_set(id=0), "id", id="id 0"),
        pytest.param(_set(id="7"), "id", id="id a string"),
        pytest.param(_set(headers=["a"]), "headers", id="headers no map"),
        pytest.param(_set(headers={"a b": ""}), "headers", id="header name out of form"),
        pytest.param(_set(headers={"a": 1}), "headers", id="header no text"),
        pytest.param(_set(headers={"a": "x" * 4096}), "headers", id="headers over 4 KiB"),
        pytest.param(_set(attempts={}), "attempts", id="attempts no list"),
        pytest.param(_set(attempts=[ATTEMPT] * 11), "attempts", id="attempts over 10"),
        pytest.param(_set(attempts=[ATTEMPT, 7]), r"attempts\[1\]\.the line", id="attempt no object"),
        pytest.param(
            _set(attempts=[ATTEMPT | {"outcome": "done"}]), r"attempts\[0\]\.outcome", id="attempt of another outcome"
        ),
        pytest.param(
            _set(attempts=[ATTEMPT | {"message": "m" * 501}]), r"attempts\[0\]\.message", id="attempt of many words"
        ),
        pytest.param(_set(attempts=[ATTEMPT | {"colour": 1}]), r"attempts\[0\]\.colour", id="attempt of more fields"),
        pytest.param(_set(progress=0.5), r"progress\.the line", id="progress no object"),
        pytest.param(_set(progress={"fraction": "half"}), r"progress\.fraction", id="progress in words"),
        pytest.param(_set(progress={"fraction": 1.5}), "progress", id="progress over 1"),
        pytest.param(
            _set(progress={"fraction": 1, "text": "x" * 201}), r"progress\.text", id="progress told at length"
        ),
        pytest.param(_set(checkpoint_base64="%"), "checkpoint_base64", id="checkpoint no base64"),
        pytest.param(_set(checkpoint_base64="é"), "checkpoint_base64", id="checkpoint not ASCII"),
        pytest.param(_set(checkpoint_base64="AAAA" * 5462), "checkpoint_base64", id="checkpoint over 16 KiB"),
        pytest.param(_set(colour="red"), "colour", id="unknown field"),
        pytest.param(_set(kind="job"), "kind", id="unknown kind"),
        pytest.param(_without("kind"), "kind", id="no kind"),
    ],
)
def test_a_task_that_cannot_be_right_is_told_by_file_line_and_field(
    store: Store, tmp_path: Path, change: Change, field: str
) -> None:
    path = tmp_path / "x.jsonl"
    exported(store, path)
    number = next(at for at, line in enumerate(lines_of(path)) if line.get("payload") == "task 2")
    rewritten(path, lambda lines: change(lines[number]))
    with pytest.raises(BadFileError, match=rf"x\.jsonl:{number + 1}: {field}: "):
        checked(path)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param(_set(format="other"), "format", id="another format"),
        pytest.param(_set(version=2), "version", id="a newer version"),
        pytest.param(_set(id="../x"), "id", id="id out of form"),
        pytest.param(_set(queues={}), "queues", id="queues no list"),
        pytest.param(lambda line: line["queues"].append(line["queues"][0]), "queues", id="a queue twice"),
        pytest.param(lambda line: line["queues"][0].update(lease_seconds=-1), r"queues\[0\].lease_seconds", id="lease"),
        pytest.param(lambda line: line["queues"][0].update(max_leases=0), r"queues\[0\].max_leases", id="max_leases"),
        pytest.param(lambda line: line["queues"][0].update(user_emails="a@b"), r"queues\[0\].user_emails", id="emails"),
        pytest.param(lambda line: line["queues"][0].update(user_emails=[1]), r"queues\[0\].user_emails", id="numbers"),
        pytest.param(lambda line: line["queues"][0].update(writer_emails=["a b"]), r"queues\[0\]", id="a blank"),
        pytest.param(
            lambda line: line["queues"][0].update(lease_calls_per_second=0),
            r"queues\[0\].lease_calls_per_second",
            id="no lease call at all",
        ),
        pytest.param(
            lambda line: line["queues"][0].update(history_keep=-1), r"queues\[0\].history_keep", id="history below 0"
        ),
        pytest.param(
            lambda line: line["queues"][0].update(history_keep=True), r"queues\[0\].history_keep", id="history a flag"
        ),
        pytest.param(
            lambda line: line["queues"][0].update(history_seconds="1d"), r"queues\[0\].history_seconds", id="in words"
        ),
        pytest.param(lambda line: line["queues"][0].update(history_seconds=4e7), r"queues\[0\]", id="over a year"),
        pytest.param(lambda line: line["queues"][0].update(on_exhausted="x"), r"queues\[0\].on_exhausted", id="on"),
        pytest.param(lambda line: line["queues"][0].update(lease_seconds=9e6), r"queues\[0\]", id="relations"),
        pytest.param(lambda line: line["queues"][0].update(name="no spaces"), r"queues\[0\]", id="queue name"),
        pytest.param(lambda line: line["queues"][0].pop("paused"), r"queues\[0\].paused", id="missing setting"),
        pytest.param(_set(kind="task"), "queue", id="no header first"),
    ],
)
def test_a_header_that_cannot_be_right_is_refused(store: Store, tmp_path: Path, change: Change, field: str) -> None:
    path = tmp_path / "x.jsonl"
    exported(store, path)
    rewritten(path, lambda lines: change(lines[0]))
    with pytest.raises(BadFileError, match=rf"x\.jsonl:1: {field}: "):
        checked(path)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param(lambda lines: lines.insert(9, lines[8]), "id", id="a line twice"),
        pytest.param(lambda lines: lines.append(lines[0]), "kind", id="a second header"),
        pytest.param(lambda lines: lines.reverse(), "queue", id="the wrong way round"),
    ],
)
def test_lines_in_an_order_that_no_export_has_are_refused(
    store: Store, tmp_path: Path, change: Callable[[list[dict[str, object]]], object], field: str
) -> None:
    path = tmp_path / "x.jsonl"
    exported(store, path)
    rewritten(path, change)
    with pytest.raises(BadFileError, match=rf"x\.jsonl:\d+: {field}: "):
        checked(path)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda raw: raw.replace(b"task 2", b"task 3", 1), id="a byte changed"),
        pytest.param(lambda raw: raw + raw.splitlines(keepends=True)[-1], id="something after the end"),
        pytest.param(
            lambda raw: b"".join(raw.splitlines(keepends=True)[:3] + raw.splitlines(keepends=True)[4:]), id="cut"
        ),
        pytest.param(lambda raw: raw.replace(b"\n", b"\r\n"), id="line ends changed"),
        pytest.param(lambda raw: b"not JSON\n" + raw, id="not JSON"),
        pytest.param(lambda raw: b"\xff\xfe" + raw, id="not UTF-8"),
        pytest.param(lambda raw: b"[1]\n" + raw, id="no object"),
    ],
)
def test_a_file_that_was_changed_is_refused(store: Store, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "x.jsonl"
    exported(store, path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadFileError, match=r"x\.jsonl:"):
        checked(path)


def test_a_line_that_is_too_long_is_refused_without_reading_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"kind": "' + b"x" * (9 << 20))
    with pytest.raises(BadFileError, match=r"x\.jsonl:1: the line: must have at most 8388608 bytes"):
        checked(path)


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_a_file_that_ends_too_early_is_never_taken_for_whole(store: Store, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    exported(store, path)
    whole = path.read_bytes()
    assert checked(path) == (49, 3)
    later_member = whole.find(b"\x1f\x8b\x08", 10) + 1  # of a compressed file: after the first byte of it
    for size in (*range(0, len(whole), max(1, len(whole) // 40)), later_member, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(CutShortError):
            checked(path)


def test_a_file_that_is_no_gzip_though_its_name_says_so_is_refused(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(b"plain text, long enough to be looked at")
    with pytest.raises(BadFileError, match="gzip"):
        checked(path)
