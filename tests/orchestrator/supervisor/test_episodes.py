"""A trouble that comes and goes: a line at its beginning, one at its end, none between."""

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.supervisor.episodes import (
    BOUNDED_SECONDS,
    CALM_SECONDS,
    Severity,
    TroubleEpisode,
    after_check,
)

T = 1_000.0
Looks = list[tuple[float, Severity]]


def logged(looks: Looks) -> list[tuple[float, str]]:
    """What is logged of these looks, each so many seconds after the first, and when."""
    found: list[tuple[float, str]] = []
    episode: TroubleEpisode | None = None
    for after, severity in looks:
        change = after_check(episode, severity, now=Monotonic(T + after))
        episode = change.episode
        if change.begins != "none":
            found.append((after, change.begins))
        if change.ended is not None:
            found.append((after, f"ended after {change.ended.seconds:g}"))
    return found


@pytest.mark.parametrize(
    ("looks", "lines"),
    [
        pytest.param([(0, "none")], [], id="well"),
        pytest.param([(0, "late"), (1, "late"), (2, "late")], [(0, "late")], id="late: said at once, and once"),
        pytest.param(
            [(0, "late"), (1, "none"), (2, "late"), (3, "none"), (2 + CALM_SECONDS, "none")],
            [(0, "late"), (2 + CALM_SECONDS, "ended after 2")],
            id="late, now and then: one beginning, one end",
        ),
        pytest.param(
            [(0, "late"), (CALM_SECONDS - 0.001, "none"), (CALM_SECONDS, "none")],
            [(0, "late"), (CALM_SECONDS, "ended after 0")],
            id="the end is said once it has been calm",
        ),
        pytest.param([(0, "bounded"), (BOUNDED_SECONDS - 0.001, "bounded"), (30, "none")], [], id="a short burst"),
        pytest.param(
            [(0, "bounded"), (BOUNDED_SECONDS, "bounded"), (6, "bounded"), (6 + CALM_SECONDS, "none")],
            [(BOUNDED_SECONDS, "bounded"), (6 + CALM_SECONDS, "ended after 6")],
            id="a bound that lasts",
        ),
        pytest.param(
            [(0, "bounded"), (BOUNDED_SECONDS, "bounded"), (6, "late"), (7, "bounded"), (8, "late")],
            [(BOUNDED_SECONDS, "bounded"), (6, "late")],
            id="a bound, then a late task: both, each once",
        ),
        pytest.param(
            [(0, "growing"), (1, "growing"), (2, "late"), (3, "growing"), (9, "growing")],
            [(2, "late")],
            id="late while it grows, and then it can't",
        ),
        pytest.param(
            [(0, "growing"), (BOUNDED_SECONDS, "growing"), (6, "growing"), (6 + CALM_SECONDS, "none")],
            [(BOUNDED_SECONDS, "growing"), (6 + CALM_SECONDS, "ended after 6")],
            id="late for long although it grows",
        ),
        pytest.param(
            [(0, "late"), (1, "bounded"), (9, "bounded")], [(0, "late")], id="a bound after a late task is no news"
        ),
        pytest.param(
            [(0, "late"), (CALM_SECONDS, "none"), (CALM_SECONDS + 1, "late")],
            [(0, "late"), (CALM_SECONDS, "ended after 0"), (CALM_SECONDS + 1, "late")],
            id="the next one is news again",
        ),
    ],
)
def test_a_trouble_is_logged_when_it_begins_and_when_it_ends(looks: Looks, lines: list[tuple[float, str]]) -> None:
    assert logged(looks) == lines
