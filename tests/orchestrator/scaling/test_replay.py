"""A decision made again from what was recorded is the same; whatever it was made from."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import LeaseSample, QueueSample
from orchestrator.capacity.allocation import Allocation
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import Fleet, spawn_failed
from orchestrator.scaling.decision import Conditions, FinishBy
from orchestrator.scaling.estimates import Estimates, ServiceTime, Startup
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.replay import recorded, replayed
from tests.support.fleet.fleet_builders import (
    NOW,
    a_finished_lease,
    a_fleet_of,
    a_lease,
    a_pool,
    a_sample,
    learn_and_decide,
)

samples = st.builds(
    lambda ages, times, arrivals, held, finished: a_sample(
        ages=sorted(ages, reverse=True),
        positions=[times * n for n in range(1, len(ages) + 1)],
        arrivals=arrivals,
        running=[a_lease(f"b{n:04}", held=seconds) for n, seconds in enumerate(held)],
        finished=finished,
        first_seen_seconds_ago={"i0000": 3.5},
    ),
    st.lists(st.floats(0, 100), max_size=8),
    st.integers(1, 50),
    st.integers(0, 100),
    st.lists(st.floats(0, 300), max_size=10),
    st.lists(
        st.builds(
            LeaseSample,
            st.just("i0000"),
            st.floats(0.001, 100),
            st.floats(0, 100),
            st.sampled_from(["deleted", "released", "expired", "died"]),
            st.integers(1, 3),
            st.floats(0, 10),
            st.integers(0, 30),
        ),
        max_size=60,
    ),
)
fleets = st.builds(
    lambda forks, **states: replace(a_fleet_of(**states), forks=forks),
    st.booleans(),
    idle=st.integers(0, 9),
    busy=st.integers(0, 9),
    starting=st.integers(0, 9),
)
specs = st.builds(
    lambda least, more, slo, slots, churn: a_pool(
        least=least,
        most=least + more,
        slo=slo,
        concurrency=slots,
        churn=churn,
        budget="24h/day",
        min_billing=60,
        fallback=3,
        tags=["a"],
        env={"A": "b"},
        schedule=[{"cron": "0 8 * * 1-5", "for": "10h", "workers": {"min": 0, "max": 20}, "timezone": "Europe/Berlin"}],
    ),
    st.integers(0, 5),
    st.integers(1, 50),
    st.floats(0.5, 300),
    st.integers(1, 4),
    st.floats(0, 60),
)
conditions = st.builds(
    Conditions,
    st.sampled_from(["no", "both", "up", "down"]),
    st.integers(1, 64),
    st.one_of(st.none(), st.floats(0, 10)),
    st.one_of(
        st.none(),
        st.builds(
            Allocation, st.integers(0, 9), st.sampled_from(["", "cpu", "unknown"]), st.just("why"), st.booleans()
        ),
    ),
    st.sampled_from(["left", "spent", "overdrawn"]),
    st.just("schedule"),
    st.one_of(st.none(), st.builds(FinishBy, st.floats(1, 1e5), st.floats(0, 2e9), st.integers(-43_200, 43_200))),
    st.just(("a note",)),
)


@given(st.lists(samples, min_size=1, max_size=4), fleets, specs, conditions, st.floats(0, 20), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_decision_made_again_from_its_record_is_the_same(
    looks: list[QueueSample], fleet: Fleet, spec: PoolSpec, given: Conditions, later: float, fails: bool
) -> None:
    if fails:
        fleet = spawn_failed(fleet, spec_digest=spec.digest(), spawned_at=NOW, now=NOW)
    state = PolicyState(Estimates(service=ServiceTime(50, 100), executed=Startup(3, 1.5)))
    for turn, look in enumerate(looks):
        sample = replace(look, at=Monotonic(NOW + 3 * turn))
        now = Monotonic(sample.at + later)
        decision, state = learn_and_decide(sample, fleet=fleet, spec=spec, state=state, now=now, conditions=given)
        record = recorded(sample, fleet, spec=spec, state=state, now=now, conditions=given)
        again = replayed(json.loads(json.dumps(record, allow_nan=False)))
        assert again == decision


def test_bounds_that_no_file_could_give_are_recorded_too() -> None:
    spec = a_pool().bounded(0, 0)
    sample, fleet = a_sample(ages=[9.0]), a_fleet_of(idle=2)
    decision, state = learn_and_decide(sample, fleet=fleet, spec=spec, state=PolicyState(), now=NOW)
    record = recorded(sample, fleet, spec=spec, state=state, now=NOW, conditions=Conditions())
    assert replayed(json.loads(json.dumps(record))) == replayed(record)
    assert replayed(record).target == decision.target == 0


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda record: [], id="no-mapping"),
        pytest.param(lambda record: {**record, "sample": None}, id="no-sample"),
        pytest.param(lambda record: {k: v for k, v in record.items() if k != "now"}, id="no-instant"),
        pytest.param(lambda record: {**record, "workers": None}, id="no-bounds"),
        pytest.param(lambda record: {**record, "spec": {"name": "a"}}, id="settings-of-another-version"),
        pytest.param(lambda record: {**record, "now": "soon"}, id="an-instant-that-is-none"),
    ],
)
def test_what_is_no_record_is_refused(damage: object) -> None:
    sample, fleet = a_sample(finished=[a_finished_lease()]), a_fleet_of(idle=2)
    _, state = learn_and_decide(sample, fleet=fleet, spec=a_pool(), state=PolicyState(), now=NOW)
    record = recorded(sample, fleet, spec=a_pool(), state=state, now=NOW, conditions=Conditions())
    with pytest.raises(ValueError):
        replayed(damage(record))  # type: ignore[operator]
