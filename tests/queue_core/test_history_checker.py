"""The crash tests' checker finds every broken promise in a hand-made history and accepts honest ones."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.checker import INVARIANTS, REPORTED_BY_DRIVERS, ClockSteppedError, check, count_by_invariant
from tests.faults.history import (
    Answer,
    Answered,
    FileHistory,
    Invoked,
    RequestedCall,
    ReturnedAdd,
    digest_of,
    pair,
    read_histories,
)
from tests.faults.lives import Contents
from tests.faults.moved import changed_on_the_way
from tests.faults.story import QUEUE, SECOND, HandMadeHistory, a_lease, a_stored, an_add, an_attempt, at
from tests.support.broken_histories import broken
from tests.support.honest_histories import honest


@pytest.mark.parametrize("story", [pytest.param(story, id=title) for title, story in honest()])
def test_an_honest_history_is_believed(story: HandMadeHistory) -> None:
    assert story.violations() == []


@pytest.mark.parametrize(
    ("invariant", "story"), [pytest.param(number, story, id=f"{number}: {title}") for number, title, story in broken()]
)
def test_a_broken_promise_is_found(invariant: str, story: HandMadeHistory) -> None:
    assert invariant in story.violations()


def test_every_invariant_has_a_history_that_breaks_it() -> None:
    assert {number for number, _, _ in broken()} == set(INVARIANTS)


def test_what_a_move_changed_is_found() -> None:
    lease = a_lease(since=2.05)
    tried = [an_attempt(lease, "raised", ended=3, message="failed")]
    full = [an_attempt(a_lease(since=number, number=number), "expired") for number in range(1, 11)]
    held = a_lease(since=20, number=11)
    before = [
        a_stored("same", tried=tried),
        a_stored("expired", lease=lease, state="LEASED", tried=[]),
        a_stored("expired once more", lease=held, state="LEASED", tried=full),
        a_stored("gone"),
        a_stored("without headers"),
        a_stored("forgotten", tried=tried),
        a_stored("twice", tried=tried),
    ]
    after = [
        a_stored("same", tried=[replace(tried[0], token="of another id")]),
        a_stored("expired", tried=[an_attempt(lease, "expired")]),
        a_stored("expired once more", tried=[*full[1:], an_attempt(held, "expired")]),
        replace(a_stored("without headers"), digest="0:"),
        a_stored("forgotten", tried=[]),
        a_stored("twice", tried=tried * 2),
    ]
    found = [(invariant, what.partition(" arrived")[0]) for invariant, what in changed_on_the_way(before, after)]
    assert found == [
        ("I1", "gone did not arrive where it was moved to"),
        ("I13", "without headers"),
        ("I19", "forgotten"),
        ("I19", "twice"),
    ]


def test_violations_are_counted_with_none_left_out() -> None:
    counts = count_by_invariant(check(HandMadeHistory().add().calls, Contents()))
    assert counts == {invariant: int(invariant == "I1") for invariant in (*INVARIANTS, *REPORTED_BY_DRIVERS)}


def test_a_digest_tells_a_payload_and_its_headers_from_others() -> None:
    payload, headers = b"payload", {"request-id": "r-7", "odd": "\u00fc\n"}
    others = [(payload, {}), (payload, {**headers, "odd": "\u00fc"}), (payload, {"request-id": "r-7"}), (b"", headers)]
    assert digest_of(payload, headers) == digest_of(payload, dict(reversed(headers.items())))
    assert digest_of(payload, {}) == digest_of(payload)
    assert len({digest_of(payload, headers), *(digest_of(*other) for other in others)}) == len(others) + 1


def test_a_stepped_clock_proves_nothing() -> None:
    first, second = HandMadeHistory().add("a").add("b").calls
    stepped = replace(second, invoked=replace(second.invoked, at=second.invoked.at + 5 * SECOND))
    with pytest.raises(ClockSteppedError):
        check([first, stepped], Contents())


def test_a_history_outlives_its_process_but_for_a_line_cut_short(tmp_path: Path) -> None:
    asked = RequestedCall("add", QUEUE, adds=(an_add("a", tag="x"),))
    lines: list[Invoked | Answered] = [
        Invoked(1, at(1), asked),
        Answered(1, at(2), "ok", answer=Answer(added=(ReturnedAdd("a", "added"),))),
    ]
    path = tmp_path / "producer.jsonl"
    with FileHistory(path) as history:
        for line in lines:
            history.write(line)
        history.write(Invoked(2, at(3), asked))
    path.write_bytes(path.read_bytes()[:-20])
    assert read_histories(tmp_path) == pair(lines, process="producer")
