"""What must hold of every decision, whatever happens to a pool: any work, any fleet, any bounds, any limits."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings

from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.replay import recorded, replayed
from tests.support.fleet.fleet_builders import learn_and_decide
from tests.support.fleet.policy_stories import PolicyStory, StoryDecision, decisions_of, stories

PROOFS: Final = frozenset(
    {
        "crash_loop",
        "runtime_unavailable",
        "queue_paused",
        "host_headroom",
        "budget",
        "max_step_up",
        "spawn_parallelism",
        "paused",
        "stale_sample",
        "failing_work",
    }
)
"""Guards that know of something which more workers would not help, or that somebody asked for."""

whatever_happens = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(stories)
@whatever_happens
def test_while_a_task_is_late_a_slot_for_each_task_is_wanted(story: PolicyStory) -> None:
    for moment in decisions_of(story):
        decision = moment.decision
        if moment.is_late:
            assert decision.unguarded >= moment.slot_each


@given(stories)
@whatever_happens
def test_what_was_cut_stays_wanted_and_who_cut_it_is_named(story: PolicyStory) -> None:
    for moment in decisions_of(story):
        decision = moment.decision
        assert (decision.target == decision.unguarded) or decision.limits
        if decision.target < min(decision.unguarded, moment.spec.workers.max):
            assert set(decision.limited_by) - {"max"}


@given(stories)
@whatever_happens
def test_nothing_learned_holds_or_shrinks_a_pool_that_is_late(story: PolicyStory) -> None:
    for moment in decisions_of(story):
        decision = moment.decision
        if moment.is_late and not PROOFS.intersection(decision.limited_by):
            wanted = max(decision.current, decision.unguarded, moment.slot_each)
            assert decision.target >= min(moment.spec.workers.max, wanted)


@given(stories)
@whatever_happens
def test_min_and_max_hold(story: PolicyStory) -> None:
    for moment in decisions_of(story):
        low, high = moment.spec.workers.min, moment.spec.workers.max
        decision = moment.decision
        assert decision.target >= min(low, decision.current)
        if {"paused", "stale_sample"}.isdisjoint(decision.limited_by):
            assert decision.target <= high
        assert decision.target <= max(high, decision.current)
        if not decision.limits:
            assert low <= decision.target


@given(stories)
@whatever_happens
def test_nobody_who_holds_a_lease_is_retired(story: PolicyStory) -> None:
    for moment in decisions_of(story):
        holders = {lease.worker for lease in moment.sample.running}
        assert holders.isdisjoint(leave.worker for leave in moment.todo.retire)


@given(stories)
@whatever_happens
def test_every_number_of_a_decision_is_one(story: PolicyStory) -> None:
    for moment in decisions_of(story):
        json.dumps(moment.decision.record(), allow_nan=False)
        assert not re.search(r"\b(nan|inf)\b", " ".join(_texts(moment)))


def _texts(moment: StoryDecision) -> tuple[str, ...]:
    decision = moment.decision
    return decision.why, *decision.notes, *(limit.why for limit in decision.limits)


@given(stories)
@whatever_happens
def test_the_same_inputs_give_the_same_decision(story: PolicyStory) -> None:
    for moment in decisions_of(story):
        again = learn_and_decide(
            moment.sample,
            fleet=moment.fleet,
            spec=moment.spec,
            state=moment.before,
            now=moment.now,
            conditions=moment.conditions,
        )
        assert again == (moment.decision, moment.after)
        record = recorded(
            moment.sample,
            moment.fleet,
            spec=moment.spec,
            state=moment.after,
            now=moment.now,
            conditions=moment.conditions,
        )
        assert replayed(json.loads(json.dumps(record, allow_nan=False))) == moment.decision


@given(stories)
@whatever_happens
def test_what_was_learned_survives_a_restart(story: PolicyStory) -> None:
    for moment in decisions_of(story):
        kept = json.loads(json.dumps(moment.after.to_json(), allow_nan=False))
        assert PolicyState.from_json(kept).to_json() == moment.after.to_json()


# -- the sentence -----------------------------------------------------------------------------------------------------


@given(stories)
@whatever_happens
def test_the_sentence_of_a_decision_agrees_with_its_numbers(story: PolicyStory) -> None:
    for moment in decisions_of(story):
        if moment.decision.rule in SENTENCES:
            SENTENCES[moment.decision.rule](moment)


def _numbers(moment: StoryDecision, *patterns: str) -> Mapping[str, float]:
    """The numbers in the sentence by their names; a pattern has <name> where the sentence has one of them."""
    for pattern in patterns:
        found = re.fullmatch(re.sub(r"<(\w+)>", r"(?P<\1>[0-9.]+)", pattern), moment.decision.why)
        if found:
            return {name: float(number) for name, number in found.groupdict().items()}
    raise AssertionError(f"no such sentence: {moment.decision.why}")


def _deadline(moment: StoryDecision) -> None:
    decision, inputs = moment.decision, moment.decision.inputs
    told = _numbers(
        moment,
        r"<ready> ready, #<position> is <age> s old: must be leased within <within> s; "
        r"<busy> busy \+ <idle> idle \+ <starting> starting can begin <begun>; <more> more needed",
        r"<position> become leasable within <due> s, and a start takes <startup> s, too long for the slo; "
        r"of these and <ready> ready <begun> can begin in time; <more> more needed",
    )
    assert told["ready"] == inputs.ready
    assert told["more"] == decision.unguarded - decision.current > 0
    if "due" in told:
        assert told["begun"] <= told["ready"] + told["position"]
        return
    assert 1 <= told["position"] <= inputs.ready
    assert told["begun"] <= told["position"]
    assert (told["busy"], told["idle"], told["starting"]) == (inputs.busy, inputs.idle, inputs.starting)
    assert told["busy"] + told["idle"] + told["starting"] == decision.current
    assert told["within"] == pytest.approx(max(0.0, inputs.usable_slo_seconds - told["age"]), abs=0.11)


def _late(moment: StoryDecision) -> None:
    decision = moment.decision
    told = _numbers(
        moment,
        r"<late> tasks? waits? longer than the slo: a slot for each task, so <target> workers, <current> so far",
    )
    assert 1 <= told["late"] <= decision.inputs.ready
    assert told["current"] == decision.current
    assert told["target"] == decision.unguarded == moment.slot_each
    assert moment.is_late


def _saturated(moment: StoryDecision) -> None:
    decision, inputs, workers = moment.decision, moment.decision.inputs, moment.spec.workers
    told = _numbers(
        moment,
        r"<ready> wait and <rate> arrive per second, and max <max> does <most> within the slo: "
        r"nothing is put off, a slot for each task",
    )
    assert told["ready"] == inputs.ready > 0
    assert told["rate"] == pytest.approx(inputs.arrival_rate, abs=0.0051)
    assert told["max"] == workers.max
    most = workers.max * moment.spec.concurrency * moment.spec.slo / inputs.service_seconds
    assert told["most"] == pytest.approx(most, abs=0.51)
    assert inputs.ready + told["rate"] * moment.spec.slo > most / 2 - 1
    assert decision.unguarded == moment.slot_each


def _warm(moment: StoryDecision) -> None:
    decision = moment.decision
    told = _numbers(moment, r"a start takes <startup> s, too long for the slo: <kept> are kept warm")
    assert told["startup"] == pytest.approx(decision.inputs.startup_seconds, abs=0.051)
    assert decision.unguarded == told["kept"] - moment.elsewhere > decision.current


def _idle(moment: StoryDecision) -> None:
    decision = moment.decision
    told = _numbers(moment, r"worker <level> was not needed for <spare> s; it pays to keep it for <hold> s")
    assert decision.unguarded == told["level"] - 1 + decision.inputs.starting < decision.current
    assert told["hold"] == pytest.approx(decision.held[int(told["level"])], abs=0.51)
    assert told["spare"] >= told["hold"]


def _paper(moment: StoryDecision) -> None:
    decision = moment.decision
    told = _numbers(moment, r"<paper> meet the slo by the Erlang C estimate, for <restart> s now")
    assert told["paper"] <= decision.unguarded + moment.elsewhere < decision.current + moment.elsewhere
    restart = moment.after.estimates.restart_seconds(moment.spec)
    assert told["restart"] == pytest.approx(restart, abs=0.51)


SENTENCES: Final[Mapping[str, Callable[[StoryDecision], None]]] = {
    "deadline": _deadline,
    "late": _late,
    "saturated": _saturated,
    "warm": _warm,
    "idle": _idle,
    "paper": _paper,
}
