"""What must hold of every decision, whatever happens to a pool: any work, any fleet, any bounds, any limits."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings

from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.replay import recorded, replayed
from queue_core.process.wording import shown_seconds
from tests.support.fleet.fleet_builders import learn_and_decide
from tests.support.fleet.policy_stories import PolicyStory, StoryDecision, decisions_of, stories

PROOFS: Final = frozenset(
    {
        "crash_loop",
        "runtime_unavailable",
        "quota",
        "max_pending",
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


@given(stories)
@whatever_happens
def test_no_pool_says_that_nothing_is_to_change_while_a_task_is_late(story: PolicyStory) -> None:
    for moment in decisions_of(story):
        decision = moment.decision
        assert bool(moment.is_late) <= bool(decision.trouble)
        if moment.is_late and decision.target <= decision.current:
            assert decision.why == decision.trouble
            assert decision.limits or decision.current < moment.spec.workers.max


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
        found = re.fullmatch(re.sub(r"<(\w+)>", r"(?P<\1>[0-9.,]*[0-9])", pattern), moment.decision.why)
        if found:
            return {name: float(number.replace(",", "")) for name, number in found.groupdict().items() if number}
    raise AssertionError(f"no such sentence: {moment.decision.why}")


WORKERS = r"(?:no worker is running|the only worker is \w+|all <all> workers are \w+|of <fleet> workers .*)"
NOBODY = r"<ready> tasks? waiting, no worker running"


def _agree_on_workers(moment: StoryDecision, told: Mapping[str, float]) -> None:
    """The sentence counts the workers as the decision does."""
    current = moment.decision.current
    assert told.get("all", told.get("fleet", current)) == current


def _deadline(moment: StoryDecision) -> None:
    decision, inputs = moment.decision, moment.decision.inputs
    first = r"the first <position> of <waiting> waiting tasks|1 of <several> tasks"
    what = rf"(?:{first}|<every> tasks?)"
    alone = r"(?:the first <position>|it|all)"
    when = r"(?:now|within [0-9.]+ (?:ms|s|min|h|d)(?: [0-9]+ (?:min|h))?)"
    told = _numbers(
        moment,
        rf"{what} must start {when}; {WORKERS}, <begun> can start by then: <more> more needed",
        rf"{NOBODY}: {alone} must start {when}, <more> workers? needed",
        r"starting <more> more workers? ahead: <upcoming> tasks? (?:is|are) due within <due> s, and a start takes "
        r"<startup> s, too long for the SLO; of these and <ready> waiting, <begun> can start in time",
    )
    assert {told.get(name, inputs.ready) for name in ("ready", "waiting", "every", "several")} == {inputs.ready}
    assert told["more"] == decision.unguarded - decision.current > 0
    if "due" in told:
        assert told["begun"] <= told["ready"] + told["upcoming"]
        return
    position = told.get("position", inputs.ready)
    assert 1 <= position <= inputs.ready
    assert told.get("begun", 0) <= position
    _agree_on_workers(moment, told)


def _late(moment: StoryDecision) -> None:
    decision = moment.decision
    told = _numbers(
        moment,
        r"<late> tasks? ha(?:s|ve) waited (?:up to )?.+ past (?:its|their) SLO of .+: "
        rf"{WORKERS}, and a slot for each task takes <target> workers?",
    )
    assert 1 <= told["late"] <= decision.inputs.ready
    assert told["target"] == decision.unguarded == moment.slot_each
    assert moment.is_late
    _agree_on_workers(moment, told)


def _bounded(moment: StoryDecision) -> None:
    """A pool that may not grow while a task is late says which task, how late, and what keeps it."""
    decision = moment.decision
    assert moment.oldest_seconds > moment.spec.slo
    assert decision.target <= decision.current
    assert decision.why == decision.trouble
    name = "max" if decision.rule == "at_max" else decision.rule
    assert [limit.why for limit in decision.limits if limit.guard == name and limit.why in decision.why]


def _saturated(moment: StoryDecision) -> None:
    decision, inputs, workers = moment.decision, moment.decision.inputs, moment.spec.workers
    told = _numbers(
        moment,
        r"heavy load: <ready> waiting, <rate>/s arriving: scaling to the maximum of <max>",
        r"heavy load: <ready> waiting, <rate>/s arriving: scaling to <target>",
    )
    assert told["ready"] == inputs.ready > 0
    assert told["rate"] == pytest.approx(inputs.arrival_rate, rel=0.0051, abs=0.0051)
    assert told.get("max", workers.max) == workers.max
    assert told.get("target", decision.unguarded) == decision.unguarded
    assert ("max" in told) == (decision.unguarded >= workers.max)
    most = workers.max * moment.spec.concurrency * moment.spec.slo / inputs.service_seconds
    assert inputs.ready + inputs.arrival_rate * moment.spec.slo > most / 2 - 1
    assert decision.unguarded == moment.slot_each


def _warm(moment: StoryDecision) -> None:
    decision = moment.decision
    told = _numbers(moment, r"keeping <kept> workers? warm: a start takes <startup> s, too long for the SLO")
    assert told["startup"] == pytest.approx(decision.inputs.startup_seconds, abs=0.051)
    assert decision.unguarded == told["kept"] - moment.elsewhere > decision.current


def _idle(moment: StoryDecision) -> None:
    decision = moment.decision
    if decision.unguarded == 0:
        assert decision.why in ("queue empty: stopping the last worker", "no task to start: stopping the last worker")
        inputs = decision.inputs
        assert (inputs.ready + inputs.in_flight + inputs.delayed == 0) or not decision.why.startswith("queue empty")
        return
    told = _numbers(
        moment,
        r"worker <level> not needed for [^()]+: stopping it",
        r"worker <level> not needed for .+ \(limit .+\): stopping it",
    )
    level = int(told["level"])
    assert decision.unguarded == level - 1 + decision.inputs.starting < decision.current
    if "limit" in decision.why:
        assert decision.why.endswith(f" (limit {shown_seconds(decision.held[level])}): stopping it")


def _paper(moment: StoryDecision) -> None:
    decision = moment.decision
    told = _numbers(moment, r"<paper> workers? ha(?:s|ve) been enough to meet the SLO for .+: stopping <less>")
    assert told["less"] == decision.current - decision.unguarded
    assert told["paper"] <= decision.unguarded + moment.elsewhere < decision.current + moment.elsewhere
    restart = moment.after.estimates.restart_seconds(moment.spec)
    assert f" the SLO for {shown_seconds(restart)}: " in decision.why


SENTENCES: Final[Mapping[str, Callable[[StoryDecision], None]]] = {
    "deadline": _deadline,
    "late": _late,
    "saturated": _saturated,
    "warm": _warm,
    "idle": _idle,
    "paper": _paper,
    "at_max": _bounded,
    "crash_loop": _bounded,
    "host_headroom": _bounded,
    "budget": _bounded,
    "max_step_up": _bounded,
    "spawn_parallelism": _bounded,
    "paused": _bounded,
    "queue_paused": _bounded,
    "stale_sample": _bounded,
}
