"""Turns over workers that hang: replaced at once, told once, fenced before they are ended, let be when they return."""

from orchestrator import events
from orchestrator.clock import Monotonic
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
    assert str(death["detail"]).startswith("it was stopped (SIGSTOP) for ")


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
