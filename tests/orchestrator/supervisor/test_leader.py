"""Who leads of several supervisors, and for how long without a word of the store."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.base import events
from orchestrator.base.clock import Monotonic
from orchestrator.supervisor.leader import (
    LEAD_SECONDS,
    MARGIN_SECONDS,
    RENEWALS,
    RETRY_SECONDS,
    STANDBY_SECONDS,
    TAKEOVER_SECONDS,
    LeaderElection,
    holder_of,
)
from tests.support.eventually import eventually
from tests.support.fleet.fakes import FakeSource
from tests.support.fleet.fleet_builders import NOW, a_pool
from tests.support.fleet.supervisor_stage import CLOCK, SupervisorStage


@pytest.fixture
def stage(tmp_path: Path) -> SupervisorStage:
    return SupervisorStage(tmp_path)


def test_the_lead_is_renewed_now_and_then_and_asked_for_often_while_another_has_it() -> None:
    source = FakeSource(leader="another")
    lead = LeaderElection(source, holder="me")
    assert lead.hold(now=NOW) is False
    assert lead.is_led_by_another
    source.leader = None
    assert lead.hold(now=NOW) is False  # not asked again at once
    assert lead.hold(now=Monotonic(NOW + STANDBY_SECONDS)) is True
    source.leader = "another"
    renewal_seconds = LEAD_SECONDS / RENEWALS
    assert lead.hold(now=Monotonic(NOW + renewal_seconds)) is True
    assert lead.hold(now=Monotonic(NOW + STANDBY_SECONDS + renewal_seconds)) is False


@pytest.mark.parametrize("lead_seconds", [5.0, 15.0, 60.0])
def test_a_lead_ends_two_margins_before_its_length_and_is_renewed_three_times_in_it(lead_seconds: float) -> None:
    source = FakeSource()
    lead = LeaderElection(source, holder="me", lead_seconds=lead_seconds)
    lead.hold(now=NOW)
    assert source.lead_seconds == [lead_seconds - TAKEOVER_SECONDS]
    assert lead.due_at == NOW + lead_seconds / RENEWALS
    assert lead.is_live(now=Monotonic(NOW + lead_seconds - TAKEOVER_SECONDS - MARGIN_SECONDS - 0.1))
    assert not lead.is_live(now=Monotonic(NOW + lead_seconds - TAKEOVER_SECONDS - MARGIN_SECONDS))


def test_a_supervisor_that_stops_gives_up_its_lead_before_its_workers_have_finished(stage: SupervisorStage) -> None:
    stage.pools = [a_pool(least=1)]
    with stage.running() as supervisor:
        eventually(lambda: stage.acts == ["spawn"])
        supervisor.request_stop()
        eventually(lambda: stage.source.leads_given_up == 1)
        assert len(stage.runtime.live) == 1
        assert stage.acts == ["spawn", "drain"]  # its workers were asked first: a slow store must not delay them
    assert stage.source.leads_given_up == 1


def test_a_supervisor_that_stops_without_its_store_lets_its_workers_finish(stage: SupervisorStage) -> None:
    stage.pools = [a_pool(least=1)]
    with stage.running() as supervisor:
        eventually(lambda: stage.acts == ["spawn"])
        stage.source.is_down = True
        supervisor.request_stop()
        eventually(lambda: stage.acts == ["spawn", "drain"])
    assert stage.codes == [0]


def test_a_lead_lasts_while_its_store_does_not_answer_but_ends_before_another_may_take_it() -> None:
    source = FakeSource()
    lead = LeaderElection(source, holder="me")
    assert lead.hold(now=NOW) is True
    source.is_down = True
    ends_at = NOW + LEAD_SECONDS - TAKEOVER_SECONDS - MARGIN_SECONDS
    assert lead.hold(now=Monotonic(ends_at - 0.1)) is True
    assert lead.is_live(now=Monotonic(ends_at)) is False
    assert lead.hold(now=Monotonic(ends_at)) is False
    assert not lead.is_led_by_another
    source.is_down = False
    assert lead.hold(now=Monotonic(ends_at + RETRY_SECONDS)) is True
    lead.give_up()


def test_whoever_led_last_asks_first_when_the_store_is_back() -> None:
    source, other_source = FakeSource(), FakeSource(leader="me")
    lead, other = LeaderElection(source, holder="me"), LeaderElection(other_source, holder="other")
    assert (lead.hold(now=NOW), other.hold(now=NOW)) == (True, False)
    source.is_down = other_source.is_down = True
    later = Monotonic(NOW + LEAD_SECONDS)
    assert (lead.hold(now=later), other.hold(now=later)) == (False, False)
    source.is_down = other_source.is_down = False
    other_source.leader = None
    soon = Monotonic(later + RETRY_SECONDS)
    assert (lead.hold(now=soon), other.hold(now=soon)) == (True, False)


def test_a_leader_without_its_store_lets_its_workers_be_and_starts_none(stage: SupervisorStage) -> None:
    stage.pools = [a_pool(least=1)]
    with capture_logs() as logs, stage.running() as supervisor:
        eventually(lambda: stage.acts == ["spawn"])
        (worker,) = stage.runtime.live
        stage.source.is_down = True
        supervisor._election._ends_at = CLOCK.monotonic()  # its time is up
        eventually(lambda: any(entry["event"] == events.SUPERVISOR_STANDBY for entry in logs))
        assert list(stage.runtime.live) == [worker]
        stage.runtime.end(worker, now=CLOCK.monotonic(), code=1)
        eventually(lambda: not stage.runtime.live)
        assert stage.acts == ["spawn"]
        stage.source.is_down = False
        eventually(lambda: stage.acts == ["spawn", "spawn"])


def test_a_restarted_supervisor_is_the_same_holder_of_the_lead(tmp_path: Path) -> None:
    assert holder_of(tmp_path) == holder_of(tmp_path)
    assert holder_of(tmp_path) != holder_of(tmp_path / "other")
