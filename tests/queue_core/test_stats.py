"""Positions of the ready queue, and groups of upcoming tasks."""

import pytest

from queue_core.clock import Instant
from queue_core.stats import group_upcoming, positions_of, sample_waiting


@pytest.mark.parametrize(
    ("count", "positions"),
    [
        (0, ()),
        (1, (1,)),
        (3, (1, 2, 3)),
        (8, (1, 2, 3, 4, 5, 6, 7, 8)),
        (9, (1, 2, 3, 4, 5, 6, 7, 9)),
        (80, (1, 12, 23, 34, 46, 57, 68, 80)),
    ],
)
def test_positions_are_even_from_the_first_to_the_last(count: int, positions: tuple[int, ...]) -> None:
    assert positions_of(count) == positions


def test_positions_beyond_the_head_lie_between_it_and_the_newest() -> None:
    head = [Instant(eta) for eta in range(1000)]
    waiting = sample_waiting(head, ready=8000, newest=Instant(7999))
    assert [(point.position, point.ready_at) for point in waiting][:3] == [(1, 0), (1143, 1142), (2286, 2285)]
    assert waiting[-1].ready_at == 7999


def test_a_short_queue_is_told_exactly() -> None:
    waiting = sample_waiting([Instant(5), Instant(9)], ready=2, newest=Instant(9))
    assert [point.ready_at for point in waiting] == [5, 9]


def test_tasks_to_come_are_counted_span_by_span_from_the_first_of_each() -> None:
    etas = [Instant(eta) for eta in (101, 110, 111, 120, 200, 260)]
    groups = group_upcoming(etas, now=Instant(100), until=Instant(260), slices=16)
    assert [(entry.position, entry.ready_at) for entry in groups] == [(2, 101), (4, 111), (5, 200), (6, 260)]
    assert group_upcoming([], now=Instant(0), until=Instant(9)) == ()
    assert len(group_upcoming([Instant(1)] * 9, now=Instant(0), until=Instant(1))) == 1
