"""A little of `python3 -m tests.fuzz`: other inputs than those that are drawn in the tests beside the readers."""

import pytest
from hypothesis import strategies as st

from tests.fuzz.readers import Check, Input, Reader, readers
from tests.fuzz.run import fuzz

SECONDS = 5.0
BATCH_INPUTS = 200


def test_no_reader_stumbles_over_what_was_right_before() -> None:
    with readers() as found:
        counts = fuzz(found, seconds=SECONDS, first_seed=1, batch_inputs=BATCH_INPUTS)
    assert [count.failure for count in counts if count.failure] == []
    assert all(count.inputs >= BATCH_INPUTS // 10 for count in counts)


def accepts(_: Input) -> bool:
    return True


def stumbles(given: Input) -> bool:
    return not given[1] or 1 // (255 - given[1][0]) >= 0


def hangs(given: Input) -> bool:
    while given[1]:
        pass
    return True


@pytest.mark.parametrize(
    ("check", "told"),
    [
        pytest.param(accepts, None, id="one that reads everything"),
        pytest.param(stumbles, "ZeroDivisionError", id="one that fails"),
        pytest.param(hangs, "HangError", id="one that hangs"),
    ],
)
def test_a_reader_that_fails_or_hangs_is_told_with_its_input(check: Check, told: str | None) -> None:
    given = ("", b"\xff")
    made = Reader("made", check, make=lambda _: given)
    drawn = Reader("drawn", check, strategy=st.just(given))
    for count in fuzz([made, drawn], seconds=0, first_seed=7, batch_inputs=20, input_seconds=0.2):
        assert (count.failure is None) == (told is None)
        assert told is None or (told in (count.failure or "") and "seed 7, input  ff" in (count.failure or ""))
