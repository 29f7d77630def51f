"""Decisions that repeat within a moment are one line with a count."""

from queue_core.client.http.folded_decisions import folded, times_in_words


def a_decision(at: float, current: int, target: int, why: str = "84 waiting", **more: object) -> dict[str, object]:
    known = {"at": at, "pool": "resize", "current": current, "target": target, "rule": "saturated", "why": why}
    return known | {"limited_by": []} | more


def told(*decisions: dict[str, object]) -> list[tuple[object, object, str]]:
    return [(one["current"], one["target"], times_in_words(one)) for one in folded(decisions)]


def test_the_same_decision_four_times_in_a_second_is_one_line_with_a_count() -> None:
    newest_first = [a_decision(10 + n / 4, 2 * n, 8, f"{84 - n} waiting") for n in reversed(range(4))]
    (only,) = folded(newest_first)
    assert (only["at"], only["current"], only["target"], only["why"]) == (10.75, 0, 8, "81 waiting")
    assert times_in_words(only) == " (x4)"


def test_a_decision_that_was_made_once_has_no_count() -> None:
    assert told(a_decision(10, 0, 8)) == [(0, 8, "")]


def test_a_decision_of_later_of_another_size_or_reason_is_a_line_of_its_own() -> None:
    assert len(told(a_decision(20, 0, 8), a_decision(10, 0, 8))) == 2
    assert len(told(a_decision(10.1, 0, 7), a_decision(10, 0, 8))) == 2
    assert len(told(a_decision(10.1, 0, 8, "backlog"), a_decision(10, 0, 8))) == 2
    assert len(told(a_decision(10.1, 0, 8, rule="min"), a_decision(10, 0, 8))) == 2
    assert len(told(a_decision(10.1, 0, 8, limited_by=["budget"]), a_decision(10, 0, 8))) == 2
    assert len(told(a_decision(10.1, 8, 8), a_decision(10, 0, 8))) == 2


def test_a_pool_that_goes_up_and_down_within_a_moment_is_told_in_full() -> None:
    up, down = a_decision(10.2, 0, 1), a_decision(10.1, 1, 0, "queue empty")
    assert told(up, down, a_decision(10, 0, 1)) == [(0, 1, ""), (1, 0, ""), (0, 1, "")]


def test_decisions_of_other_pools_in_between_do_not_part_them() -> None:
    other = a_decision(10.1, 0, 1, pool="other")
    assert told(a_decision(10.2, 4, 8), other, a_decision(10, 0, 8)) == [(0, 8, " (x2)"), (0, 1, "")]
