"""Output is what a page shows: numbers, durations, times and ids are alike, `...` is anything, and all else is not."""

import pytest

from tests.docs.expected import matches


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        (["took 0.17 s"], "took 0.21 s\n"),
        (["took 90 ms"], "took 1 min 2 s"),
        (["12:04:31  resize-7f3k2q killed"], "09:00:00 resize-zzzzzz killed"),
        (["1,277 tasks"], "3 tasks"),
        (["a  b"], "a b"),
        (["anything ... end"], "anything at all, to the end"),
        (["first", "...", "last"], "first\n1\n2\nlast\n"),
        (["..."], ""),
        (["first", "..."], "first\n"),
        (["a sentence that is", "broken"], "a sentence that is broken\n"),
        (["red"], "\x1b[31mred\x1b[0m\n"),
        (["done"], "half\rdone\n"),
        (["one", "", "two"], "one\ntwo\n"),
        (["id 0b6cd3d0-2d5a-4a3c-8d4c-5f7b3a1f0c11"], "id 9a6cd3d0-1111-4a3c-8d4c-5f7b3a1f0c22"),
    ],
)
def test_this_is_what_the_page_shows(shown: list[str], printed: str) -> None:
    assert matches(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        (["one"], "two"),
        (["one"], "one\ntwo\n"),
        (["one", "two"], "one\n"),
        (["3 ready"], "3 dead"),
        (["first", "...", "last"], "first\nlast but one\n"),
        (["resize-7f3k2q killed"], "resize killed"),
        (["one"], ""),
    ],
)
def test_this_is_not(shown: list[str], printed: str) -> None:
    assert not matches(shown, printed)


def test_of_a_command_that_goes_on_lines_come_in_order_with_others_between() -> None:
    printed = "before\none\nbetween\ntwo\nafter\n"
    assert matches(["one", "two"], printed, may_go_on=True)
    assert not matches(["two", "one"], printed, may_go_on=True)
