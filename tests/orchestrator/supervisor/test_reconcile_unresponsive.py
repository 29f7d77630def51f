"""Turns over workers that hang: replaced at once, told once, fenced before they are ended, let be when they return."""

import json

import pytest

from orchestrator.base import events
from orchestrator.base.clock import Monotonic
from orchestrator.runtime import STANDSTILLS
from tests.support.fleet.reconciler_stage import ReconcilerStage

TURN = 1.0


def two_of_three_hang(stage: ReconcilerStage, **settings: object) -> list[str]:
    """A pool of two that may be three; both hang while they hold a lease, which has just ended by time."""
    names = stage.with_workers(2, most=3, slo=1.0, grace=30, **settings)
    for name in names:
        stage.source.held[name], stage.source.asked_at[name] = [f"task of {name}"], stage.clock.monotonic()
    stage.turn(after=TURN)
    for name in names:
        del stage.source.held[name]
    stage.source.ready, stage.source.age_seconds = 2, 0.5
    stage.runtime.condition = "stopped (SIGSTOP)"
    stage.turn(after=TURN)
    return names


def test_workers_that_hang_are_replaced_in_the_turn_that_finds_out(stage: ReconcilerStage) -> None:
    names = two_of_three_hang(stage)
    assert [stage.state_of(name) for name in names] == ["unresponsive"] * 2
    assert stage.runtime.calls == [
        *(("examine before mark", name) for name in names),
        ("spawn", "resize-3"),
        ("spawn", "resize-4"),
    ]
    told = stage.logged(events.WORKER_UNRESPONSIVE)
    assert [(one["worker"], one["condition"]) for one in told] == [(name, "stopped (SIGSTOP)") for name in names]
    decision = stage.reconciler.pools["resize"].decision
    assert decision is not None
    assert decision.notes == (f"2 unresponsive and no capacity: {', '.join(names)}",)


def test_they_are_fenced_asked_and_ended_when_their_grace_is_over(stage: ReconcilerStage) -> None:
    names = two_of_three_hang(stage)
    stage.runtime.condition = "stopped by a debugger"
    stage.source.ready = 0
    stage.source.seen.update(stage.runtime.live)
    for _ in range(29):
        stage.turn(after=TURN)
    assert not stage.source.retired
    for _ in range(6):
        stage.turn(after=TURN)
    assert stage.source.retired == set(names)
    assert [asked for asked in stage.runtime.calls if asked[0] in {"examine before end", "drain", "kill"}] == [
        *((verb, name) for name in names for verb in ("examine before end", "drain")),
        *(("kill", name) for name in names),
    ]
    stage.runtime.end(names[0], now=stage.clock.monotonic(), signal=9)
    stage.turn(after=TURN)
    (death,) = stage.files.read_deaths(limit=1)
    assert death["cause"] == "unresponsive"
    assert str(death["detail"]).startswith("it was stopped by a debugger for ")


@pytest.mark.parametrize("condition", sorted(STANDSTILLS))
def test_those_that_stand_still_are_fenced_and_killed_without_being_resumed(
    stage: ReconcilerStage, condition: str
) -> None:
    names = two_of_three_hang(stage)
    stage.runtime.condition = condition
    stage.source.ready = 0
    stage.source.seen.update(stage.runtime.live)
    for _ in range(31):
        stage.turn(after=TURN)
    assert stage.source.retired == set(names)
    asked = [asked for asked in stage.runtime.calls if asked[0] in {"examine before end", "drain", "kill"}]
    assert asked[:4] == [(verb, name) for name in names for verb in ("examine before end", "kill")]
    assert "drain" not in {verb for verb, _ in asked}
    stage.runtime.end(names[0], now=stage.clock.monotonic(), signal=9)
    stage.turn(after=TURN)
    (death,) = stage.files.read_deaths(limit=1)
    assert death["cause"] == "unresponsive"
    assert condition in str(death["detail"])


def test_its_certificate_and_its_event_name_the_call_and_the_task_whose_lease_lapsed(stage: ReconcilerStage) -> None:
    names = two_of_three_hang(stage)
    stage.source.ready = 0
    for _ in range(36):
        stage.turn(after=TURN)
    for name in names:
        stage.source.lapsed[name] = [f"task of {name}", "another"]
    stuck = {"queue": "thumbs", "handler": "resize", "task": f"task of {names[0]}", "lease_number": 1, "seconds": 8.0}
    line = json.dumps({"event": "handler.stuck", **stuck, "place": "tasks.py:14"})
    stage.runtime.end(names[0], now=stage.clock.monotonic(), signal=9, last_lines=(line,))
    stage.turn(after=TURN)
    (death,) = stage.files.read_deaths(limit=1)
    assert str(death["detail"]).startswith("resize hung at tasks.py:14, and ran on without its lease for ")
    held = death["held"]
    assert isinstance(held, list)
    assert [(one["task"], one["fate"]) for one in held] == [(f"task of {names[0]}", "lease ended")]
    assert (death["failed_start"], death["blamed"]) == (False, False)
    (told,) = [one for one in stage.logged(events.WORKER_REAPED) if one["worker"] == names[0]]
    assert told["sentence"] == (
        f"{death['detail']}; its task thumbs/task of {names[0]}, lease 1, was ready again when its lease ended"
    )


def test_a_worker_that_holds_a_lease_after_all_is_not_signalled(stage: ReconcilerStage) -> None:
    names = two_of_three_hang(stage)
    stage.source.ready = 0
    for _ in range(28):
        stage.turn(after=TURN)
    stage.source.leased_unseen.update(names)  # leased between the look and the plan
    for _ in range(5):
        stage.turn(after=TURN)
    assert not [asked for asked in stage.runtime.calls if asked[0] in {"drain", "kill"}]


def test_a_worker_that_asks_again_counts_again(stage: ReconcilerStage) -> None:
    names = two_of_three_hang(stage)
    stage.source.asked_at[names[0]] = Monotonic(stage.clock.monotonic() + TURN)
    stage.turn(after=TURN)
    assert [stage.state_of(name) for name in names] == ["idle", "unresponsive"]
    (told,) = stage.logged(events.WORKER_RESPONSIVE)
    assert told["worker"] == names[0]
