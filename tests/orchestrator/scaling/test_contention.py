"""Contention: tried before it is believed, found where it is, and taken for nothing else; undone, and forgotten."""

import heapq
import json
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import LeaseSample, QueueSample, RunningLease, Waiting
from orchestrator.config.pools import PoolSpec
from orchestrator.scaling.contention import NO_CONTENTION, Contention, Step, TimedLease, Trial
from orchestrator.scaling.context import Facts
from orchestrator.scaling.decision import DEFAULT_CONDITIONS
from orchestrator.scaling.guards import contention
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.plan import plan_actions
from orchestrator.scaling.replay import recorded, replayed
from tests.support.fleet.fleet_builders import NOW, a_fleet_of, a_pool, a_sample, learn_and_decide

TURN_SECONDS = 2.0
POOL = a_pool(most=60, slo=10, contention="guard")

Law = Callable[[random.Random, float], float]
"""The seconds of a task that begins at an instant, alone."""
Slowdown = Callable[[float, int], float]
"""How many times as long a lease lasts that begins at an instant among so many."""


def never(_at: float, _held: int) -> float:
    return 1.0


def shared(_at: float, held: int) -> float:
    """Most gets done by about ten."""
    return 1.0 + 0.05 * (held - 1) + 0.01 * held * (held - 1)


def story(
    law: Law,
    rate: Callable[[float], float],
    slowdown: Slowdown = never,
    *,
    seconds: float = 3600.0,
    seed: int = 1,
    pool: PoolSpec = POOL,
    known: Contention = NO_CONTENTION,
) -> Iterator[tuple[QueueSample, Contention]]:
    """What a pool sees that wants a slot for each task; after each turn what it knows. Busy workers are let finish."""
    dice = random.Random(seed)
    waiting: deque[float] = deque()
    running: list[tuple[float, float, int]] = []
    at, next_at = 0.0, 0.0
    while at < seconds:
        until, arrivals, finished = at + TURN_SECONDS, 0, []
        most = pool.workers.max if known.trial is None or pool.contention != "guard" else known.trial.limit
        while at < until:
            ends_at = running[0][0] if running else until
            at = min(next_at, ends_at, until)
            if at == ends_at and running:
                ends_at, began_at, held = heapq.heappop(running)
                finished.append((ends_at, began_at, held))
            elif at == next_at:
                waiting.append(at)
                arrivals += 1
                next_at = at + dice.expovariate(rate(at))
            while waiting and len(running) < most:
                waiting.popleft()
                held = len(running) + 1
                heapq.heappush(running, (at + law(dice, at) * slowdown(at, held), at, held))
        sample = QueueSample(
            Monotonic(at),
            len(waiting),
            0,
            len(running),
            0,
            arrivals=arrivals,
            waiting=(Waiting(1, at - waiting[0]),) if waiting else (),
            running=tuple([RunningLease("w", at - began_at, 0.0, 1, held) for _, began_at, held in running]),
            finished=tuple(
                [LeaseSample("w", end - began, 0.0, "deleted", 1, at - end, held) for end, began, held in finished]
            ),
        )
        known = known.after(sample, pool, startup_seconds=0.0)
        yield sample, known


def lognormal(dice: random.Random, _at: float) -> float:
    return dice.lognormvariate(0.0, 0.5)


def burst(at: float) -> float:
    """Tasks a second: a few, and once three hundred within five seconds."""
    return 60.0 if 600 <= at < 605 else 2.5


def steps(told: Iterator[tuple[QueueSample, Contention]]) -> list[str | None]:
    """The steps of trials one after the other, None between trials."""
    seen: list[str | None] = []
    for _, known in told:
        step = None if known.trial is None else known.trial.step
        if not seen or seen[-1] != step:
            seen.append(step)
    return seen


@pytest.mark.parametrize("seed", range(4))
def test_contention_is_tried_and_found_about_where_most_gets_done(seed: int) -> None:
    held = None
    for sample, known in story(lognormal, burst, shared, seconds=1500, seed=seed):
        if known.trial is not None and known.trial.step == "held":
            held = known.trial
        ready = sample.ready
    assert held is not None
    assert 4 <= held.few <= 24
    assert ready == 0


def test_fewer_are_tried_and_more_and_fewer_again_before_it_is_believed() -> None:
    assert steps(story(lognormal, burst, shared, seconds=900))[:5] == [None, "fewer", "more", "again", "held"]


def test_off_learns_nothing_and_watch_tries_nothing() -> None:
    off, watch = a_pool(most=60, slo=10), a_pool(most=60, slo=10, contention="watch")
    assert {id(known) for _, known in story(lognormal, burst, shared, seconds=700, pool=off)} == {id(NO_CONTENTION)}
    assert set(steps(story(lognormal, burst, shared, seconds=900, pool=watch))) == {None, "fewer"}


def a_law(dice: random.Random) -> tuple[str, Law]:
    """Work that is mixed, or changes with time, and never with how many are held."""
    mean = math.exp(dice.uniform(math.log(0.2), math.log(30)))
    times, share = dice.choice([3, 10, 40, 300]), dice.choice([0.02, 0.1, 0.3])
    period, part = math.exp(dice.uniform(math.log(20), math.log(900))), dice.uniform(0.2, 0.8)
    kind = dice.choice(["mixed", "phases", "phases", "drift", "heavy"])
    if kind == "mixed":
        least = mean / (1 - share + share * times)
        return kind, lambda by, _: least * (times if by.random() < share else 1) * by.uniform(0.8, 1.2)
    if kind == "phases":
        few = mean / (1 - part + part * min(times, 40))
        return kind, lambda by, at: few * (min(times, 40) if at % period < part * period else 1) * by.uniform(0.8, 1.2)
    if kind == "drift":
        return kind, lambda by, at: mean * math.exp(at / 900 - 1) * by.uniform(0.8, 1.2)
    return kind, lambda by, _: min(0.25 * mean * by.paretovariate(1.3), 60 * mean)


def a_rate(dice: random.Random, law: Law) -> Callable[[float], float]:
    mean = sum(law(dice, 18.0 * n) for n in range(100)) / 100
    load, period, times = (
        math.exp(dice.uniform(math.log(4), math.log(58))),
        dice.choice([120, 600]),
        dice.choice([1, 5]),
    )
    return lambda at: min(load / mean, 20.0) * (times if at % period < 0.3 * period else 1) / (0.7 + 0.3 * times)


@pytest.mark.parametrize("seed", range(16))
def test_work_that_is_mixed_or_changes_is_never_taken_for_contention(seed: int) -> None:
    dice = random.Random(seed)
    _, law = a_law(dice)
    assert "held" not in steps(story(law, a_rate(dice, law), seconds=1200, seed=seed))


def timed(share: float, held: int, count: int, *, tag: str | None = None, at: float = 0.0) -> tuple[TimedLease, ...]:
    spread = (0.6, 0.8, 1.0, 1.25, 1.5)
    return tuple([TimedLease(tag, at - 100.0, share * held * spread[n % 5], held) for n in range(count)])


def a_trial(
    step: Step = "fewer", *, few: int = 10, many: int = 40, until: float = NOW + 1800, at: float = NOW
) -> Trial:
    """A trial in which fewer looked twice as good so far."""
    return Trial(
        few,
        many,
        timed(0.25, few, 60, at=at),
        timed(0.5, many, 60, at=at),
        Monotonic(at),
        100,
        step,
        until=Monotonic(until),
    )


def is_held_after(seed: int, step: Step) -> tuple[str, bool]:
    """Return the law of the work, and whether a trial is held that began where a coincidence helped it so far."""
    dice = random.Random(seed)
    name, law = a_law(dice)
    usual = sorted(law(dice, 10.0 * n) for n in range(60))
    done_few = tuple([TimedLease(None, -100.0, seconds, 10) for seconds in usual])
    done_many = tuple([TimedLease(None, -100.0, seconds * 8, 40) for seconds in usual])
    if step == "again":  # what a coincidence can't do: twice
        done_many = tuple([TimedLease(None, -100.0, seconds, 40) for seconds in usual])
    trial = replace(a_trial(step, until=0.0, at=0.0), done_few=done_few, done_many=done_many)
    told = story(law, a_rate(dice, law), seconds=300, seed=seed, known=Contention(trial=trial))
    return name, "held" in steps(told)


@given(st.integers(0, 2**32), st.sampled_from(["fewer", "more", "again"]))
@settings(max_examples=25, deadline=None)
def test_a_trial_begun_without_cause_ends_without_effect(seed: int, step: Step) -> None:
    name, is_held = is_held_after(seed, step)
    assert not is_held or name == "phases", name


def test_work_that_changes_by_itself_is_hardly_ever_held_for_it() -> None:
    """Its changes can fall on the steps of a trial twice in a row; no figure tells them from contention then."""
    assert sum(is_held_after(seed, "more")[1] for seed in range(100)) <= 1
    assert not any(is_held_after(seed, step)[1] for seed in range(30) for step in ("fewer", "again"))


def test_a_pool_that_falls_behind_under_its_cap_gets_more_again() -> None:
    """Contention passes while the pool is held, and more work comes."""
    told = story(
        lognormal,
        lambda at: 30.0 if at > 900 else burst(at),
        lambda at, held: shared(at, held) if at < 900 else 1.0,
        seconds=1500,
    )
    limits = {sample.at: (known.trial.limit if known.trial else 60) for sample, known in told}
    assert limits[900] < 20
    assert limits[1020] > 30


def test_more_that_do_less_are_tried_once_and_let_go() -> None:
    """More work comes than any size can do."""
    told = story(lognormal, lambda at: 2.0 if at < 600 else 6.0, shared, seconds=1500)
    limits = [known.trial.limit for sample, known in told if sample.at > 900 and known.trial]
    assert max(limits) <= 30
    assert limits[-1] <= 20


def a_look(*, ready: int = 100, at: float = NOW, age: float = 60.0) -> QueueSample:
    return a_sample(at=at, ages=[age] * ready)


def test_a_cap_ends_after_its_time_and_all_is_forgotten() -> None:
    known = Contention(trial=a_trial("held", until=NOW + 1800))
    assert known.after(a_look(at=NOW + 1799), POOL, startup_seconds=0.0).trial is not None
    assert known.after(a_look(at=NOW + 1800), POOL, startup_seconds=0.0) is NO_CONTENTION


def test_a_trial_that_does_not_come_to_an_end_is_given_up_and_left_for_an_hour() -> None:
    known = Contention(trial=a_trial("fewer")).after(a_look(at=NOW + 200), POOL, startup_seconds=0.0)
    assert known == Contention(quiet_until=Monotonic(NOW + 3800))


@pytest.mark.parametrize(
    ("step", "told"),
    [
        pytest.param("fewer", "40 at a time did 1.94 tasks a second, 10 did 3.88: trying 10", id="fewer"),
        pytest.param("more", "40 at a time did 1.94 tasks a second, 10 did 3.88: trying 40", id="more"),
        pytest.param("probe", "40 at a time did 1.94 tasks a second, 10 did 3.88: trying 20", id="probe"),
        pytest.param(
            "held", "40 at a time did 1.94 tasks a second, 10 did 3.88 (p < 0.001): 10 at most for 30 min", id="held"
        ),
    ],
)
def test_the_guard_says_what_was_seen_and_what_follows(step: Step, told: str) -> None:
    fleet = a_fleet_of(busy=40)
    pool = a_pool(most=60, contention="guard")
    known = PolicyState(contention=Contention(trial=a_trial(step)))
    seen = Facts(a_look(), fleet, fleet.alive, pool, DEFAULT_CONDITIONS, NOW, known)
    answer = contention(60, seen)
    assert answer is not None
    assert (answer[0], answer[1].guard, answer[1].why) == (a_trial(step).limit, "contention", told)
    assert contention(10, seen) is None


def test_busy_workers_beyond_what_is_tried_are_let_finish_and_told_why() -> None:
    fleet, pool = a_fleet_of(busy=40), a_pool(most=60, slo=10, contention="guard")
    trial = a_trial("fewer")
    state = PolicyState(contention=Contention(trial=trial), sampled_at=NOW)
    decision, _ = learn_and_decide(a_look(), fleet=fleet, spec=pool, state=state, now=NOW)
    todo = plan_actions(decision, fleet=fleet, spec=pool, now=NOW)
    assert (len(todo.finish), todo.retire, todo.kill) == (30, (), ())
    assert {leave.why for leave in todo.finish} == {trial.describe(NOW)}


def test_a_decision_in_a_trial_is_made_again_from_its_record() -> None:
    fleet, pool = a_fleet_of(busy=40), a_pool(most=60, slo=10, contention="guard")
    known = Contention({4: timed(0.2, 10, 9)}, a_trial("fewer"))
    decision, state = learn_and_decide(a_look(), fleet=fleet, spec=pool, state=PolicyState(contention=known), now=NOW)
    record = recorded(a_look(), fleet, spec=pool, state=state, now=NOW, conditions=DEFAULT_CONDITIONS)
    assert replayed(json.loads(json.dumps(record, allow_nan=False))) == decision


@pytest.mark.parametrize("setting", ["off", "watch"])
@pytest.mark.parametrize("step", ["fewer", "held"])
def test_unless_it_is_to_guard_no_target_changes(setting: str, step: Step) -> None:
    fleet, pool = a_fleet_of(busy=5), a_pool(most=60, contention=setting)
    state = PolicyState(contention=Contention(trial=a_trial(step)))
    free, _ = learn_and_decide(a_look(), fleet=fleet, spec=pool, state=PolicyState(), now=NOW)
    seen, _ = learn_and_decide(a_look(), fleet=fleet, spec=pool, state=state, now=NOW)
    assert (seen.target, seen.limits) == (free.target, free.limits)


def seen_at(sizes: dict[int, tuple[float, str | None]], *, startup_seconds: float = 0.0) -> Contention:
    """What is known of a late pool after leases that took that share of its time, of a tag, among so many."""
    known = NO_CONTENTION
    finished = [
        LeaseSample("w", lease.seconds, 0.0, "deleted", 1, 100.0, held, tag)
        for held, (share, tag) in sizes.items()
        for lease in timed(share, held, 40)
    ]
    sample = replace(a_look(), in_flight=40, finished=tuple(finished))
    return known.after(sample, a_pool(most=60, slo=10, contention="watch"), startup_seconds=startup_seconds)


def test_it_is_suspected_where_leases_take_more_of_the_pool_among_many() -> None:
    assert seen_at({5: (0.3, None), 40: (0.6, None)}).trial is not None
    assert seen_at({5: (0.3, None), 40: (0.3, None)}).trial is None


def test_no_trial_begins_that_tasks_would_wait_longer_for_than_they_do() -> None:
    slow = {5: (0.3, None), 40: (0.6, None)}
    assert seen_at(slow, startup_seconds=60.0 - 0.6 * 40).trial is not None
    assert seen_at(slow, startup_seconds=61.0 - 0.6 * 40).trial is None


def test_like_work_is_work_of_one_tag() -> None:
    assert seen_at({5: (0.3, "short"), 40: (0.6, "long")}).trial is None


def test_what_is_suspected_is_told_with_a_decision() -> None:
    pool, fleet = a_pool(most=60, slo=10, contention="watch"), a_fleet_of(busy=40)
    known = seen_at({5: (0.3, None), 40: (0.6, None)})
    decision, _ = learn_and_decide(
        a_look(), fleet=fleet, spec=pool, state=PolicyState(contention=known, sampled_at=NOW), now=NOW
    )
    assert "contention: 40 at a time did 1.62 tasks a second, 5 did 3.24" in decision.notes
