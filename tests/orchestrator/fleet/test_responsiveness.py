"""Which workers hang, from values alone: what was heard of each, what each held, how long the pool was watched."""

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import PresentWorker, QueueSample
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.external import POLLS_SECONDS, WAITS_SECONDS
from orchestrator.fleet.observation import observe
from orchestrator.fleet.responsiveness import GAP_SECONDS, UNTAKEN_SECONDS, WorkWatch, mark_unresponsive, next_watch
from orchestrator.fleet.workers import Fleet, State, Worker
from tests.support.fleet.fleet_builders import NOW, a_finished_lease, a_fleet, a_lease, a_pool, a_sample, a_worker

LONG = WorkWatch(Monotonic(NOW - 1000))


def presence_of(silent: float, *, waits: bool = True) -> dict[str, PresentWorker]:
    return {"w1": PresentWorker("w1", silent, waits=waits)}


def state_of(
    worker: Worker, sample: QueueSample, *, watch: WorkWatch = LONG, spec: PoolSpec | None = None, at: str = "w1"
) -> State:
    fleet = mark_unresponsive(a_fleet(worker), sample, spec=spec or a_pool(), watch=watch)
    return fleet.workers[at].state


IDLE = a_worker(since=NOW - 900)
LAPSED = a_worker(since=NOW, lapsed_at=Monotonic(NOW - 0.5))


@pytest.mark.parametrize(
    ("worker", "silent", "state"),
    [
        pytest.param(IDLE, 0.0, "idle", id="it waits in a lease call, for however long"),
        pytest.param(IDLE, 0.2, "idle", id="it is between two lease calls"),
        pytest.param(IDLE, WAITS_SECONDS - 0.001, "idle", id="it asked within seconds"),
        pytest.param(IDLE, WAITS_SECONDS, "unresponsive", id="it has not asked for seconds"),
        pytest.param(LAPSED, 30.0, "unresponsive", id="its lease ended by time, and it has not asked since"),
        pytest.param(LAPSED, 0.4, "idle", id="its lease ended by time, and it asked since"),
        pytest.param(LAPSED, 0.0, "idle", id="its lease ended by time, and it waits for another"),
        pytest.param(
            a_worker(acted_at=Monotonic(NOW - 1)), 600.0, "idle", id="it deleted its task a moment ago, by another call"
        ),
        pytest.param(
            a_worker(acted_at=Monotonic(NOW - 9)), 600.0, "unresponsive", id="it deleted its task, and went silent"
        ),
        pytest.param(a_worker(state="busy"), 600.0, "busy", id="it holds a lease"),
        pytest.param(a_worker(state="starting"), 600.0, "starting", id="it has not asked for its first lease yet"),
        pytest.param(a_worker(state="draining"), 600.0, "draining", id="it was asked to finish"),
    ],
)
def test_idle_means_that_a_worker_asks_now_or_did_within_seconds(worker: Worker, silent: float, state: State) -> None:
    assert state_of(worker, a_sample(presence=presence_of(silent))) == state


@pytest.mark.parametrize(
    ("silent", "slo", "state"),
    [
        pytest.param(POLLS_SECONDS - 1, 1.0, "idle", id="below the limit"),
        pytest.param(POLLS_SECONDS, 1.0, "unresponsive", id="at the limit"),
        pytest.param(POLLS_SECONDS + 1, 600.0, "idle", id="it may ask as seldom as the slo allows"),
    ],
)
def test_a_worker_whose_calls_never_wait_may_be_silent_for_longer(silent: float, slo: float, state: State) -> None:
    sample = a_sample(presence=presence_of(silent, waits=False))
    assert state_of(IDLE, sample, spec=a_pool(slo=slo)) == state


@pytest.mark.parametrize("paused", [False, True])
def test_a_worker_that_waits_on_a_paused_queue_is_idle(paused: bool) -> None:
    sample = a_sample(ages=[900.0], paused=paused, presence=presence_of(0.0))
    assert state_of(IDLE, sample, watch=WorkWatch(LONG.since, Monotonic(NOW - 900))) == "idle"


def test_what_was_silent_while_nobody_looked_is_judged_only_after_it_could_have_asked() -> None:
    sample = a_sample(presence=presence_of(60.0))
    assert state_of(IDLE, sample, watch=WorkWatch(Monotonic(NOW - WAITS_SECONDS + 0.1))) == "idle"
    assert state_of(IDLE, sample, watch=WorkWatch(Monotonic(NOW - WAITS_SECONDS))) == "unresponsive"
    assert state_of(LAPSED, sample, watch=WorkWatch(NOW)) == "idle", "its lease may have ended because nobody answered"


def test_while_more_leases_are_held_than_a_sample_tells_nobody_is_judged() -> None:
    sample = a_sample(presence=presence_of(60.0))
    sample.in_flight = 1
    assert state_of(IDLE, sample) == "idle"


def test_workers_that_others_start_are_not_judged() -> None:
    spec = a_pool(runtime="external", app=None)
    assert state_of(IDLE, a_sample(presence=presence_of(600.0)), spec=spec) == "idle"


def test_a_worker_alone_with_a_suspect_that_hangs_it_is_unresponsive_too() -> None:
    name = "resize-1.alone.7.99"
    worker = a_worker(name, "alone")
    sample = a_sample(presence={name: PresentWorker(name, 60.0, waits=True)})
    assert state_of(worker, sample, at=name) == "unresponsive"
    hung = a_worker(name, "unresponsive", hung_at=Monotonic(NOW - 9))
    assert state_of(hung, a_sample(presence={name: PresentWorker(name, 0.0)}), at=name) == "alone"


UNTAKEN = WorkWatch(LONG.since, Monotonic(NOW - UNTAKEN_SECONDS))


@pytest.mark.parametrize(
    ("worker", "watch", "settings", "state"),
    [
        pytest.param(IDLE, UNTAKEN, {}, "unresponsive", id="work has waited for so long that it would have been taken"),
        pytest.param(IDLE, WorkWatch(LONG.since), {}, "idle", id="nothing waits"),
        pytest.param(
            IDLE,
            WorkWatch(LONG.since, Monotonic(NOW - UNTAKEN_SECONDS + 0.1)),
            {},
            "idle",
            id="work waits, not for long",
        ),
        pytest.param(
            IDLE, WorkWatch(Monotonic(NOW - 5), UNTAKEN.untaken_since), {}, "idle", id="it could not be taken before"
        ),
        pytest.param(a_worker(since=NOW - 5), UNTAKEN, {}, "idle", id="it has been free for a moment only"),
        pytest.param(
            IDLE,
            UNTAKEN,
            {"app": None, "command": ["work"]},
            "idle",
            id="a program of somebody else's may lease other tags",
        ),
    ],
)
def test_where_no_server_tells_who_asks_work_that_nobody_takes_does(
    worker: Worker, watch: WorkWatch, settings: dict[str, object], state: State
) -> None:
    assert state_of(worker, a_sample(ages=[UNTAKEN_SECONDS]), watch=watch, spec=a_pool(**settings)) == state


@pytest.mark.parametrize(
    ("worker", "watch", "settings", "state"),
    [
        pytest.param({"lapsed": UNTAKEN_SECONDS}, LONG, {}, "unresponsive", id="silent since its lease ended by time"),
        pytest.param({"lapsed": UNTAKEN_SECONDS - 0.1}, LONG, {}, "idle", id="not for long"),
        pytest.param({"lapsed": 60.0, "acted": 5.0}, LONG, {}, "idle", id="it ended a lease since"),
        pytest.param({"lapsed": 60.0}, WorkWatch(Monotonic(NOW - 5)), {}, "idle", id="nobody looked for a while"),
        pytest.param({"lapsed": 60.0}, LONG, {"app": None, "command": ["work"]}, "idle", id="another's program"),
    ],
)
def test_a_worker_whose_lease_ended_by_time_hangs_also_when_others_have_taken_all_work(
    worker: dict[str, float], watch: WorkWatch, settings: dict[str, object], state: State
) -> None:
    times = {f"{name}_at": Monotonic(NOW - ago) for name, ago in worker.items()}
    lapsed = a_worker(since=NOW - 60, **times)
    assert state_of(lapsed, a_sample(), watch=watch, spec=a_pool(**settings)) == state


def hung(**more: object) -> Worker:
    return a_worker(state="unresponsive", since=NOW - 8, hung_at=Monotonic(NOW - 20), **more)


def test_a_worker_that_asks_again_is_idle_from_now_on() -> None:
    fleet = mark_unresponsive(
        a_fleet(hung(condition="stopped")), a_sample(presence=presence_of(0.0)), spec=a_pool(), watch=LONG
    )
    worker = fleet.workers["w1"]
    assert (worker.state, worker.since, worker.hung_at, worker.condition) == ("idle", NOW, None, "")


def test_a_worker_that_holds_a_lease_again_is_busy() -> None:
    fleet = observe(a_fleet(hung()), a_sample(running=[a_lease("w1", held=2.0)]))
    assert (fleet.workers["w1"].state, fleet.workers["w1"].hung_at) == ("busy", None)


def test_a_worker_that_nobody_speaks_for_stays_unresponsive_when_the_servers_forgot_it() -> None:
    assert state_of(hung(), a_sample()) == "unresponsive"


def test_after_a_gap_a_worker_is_given_its_grace_anew() -> None:
    watch = WorkWatch(Monotonic(NOW - 6))
    fleet = mark_unresponsive(a_fleet(hung()), a_sample(presence=presence_of(60.0)), spec=a_pool(), watch=watch)
    assert fleet.workers["w1"].since == NOW - 6


def test_no_change_is_the_same_fleet() -> None:
    fleet = a_fleet(IDLE)
    assert mark_unresponsive(fleet, a_sample(presence=presence_of(0.0)), spec=a_pool(), watch=LONG) is fleet


@pytest.mark.parametrize(
    ("outcome", "lapsed_at", "acted_at"),
    [
        pytest.param("expired", NOW - 0.5, None, id="ended by time"),
        pytest.param("deleted", None, NOW - 0.5, id="done"),
        pytest.param("released", None, NOW - 0.5, id="given back"),
    ],
)
def test_only_an_end_by_time_says_that_a_worker_did_nothing(
    outcome: str, lapsed_at: float | None, acted_at: float | None
) -> None:
    lease = a_finished_lease(ended_ago=0.5)
    lease.outcome = outcome  # type: ignore[assignment]
    worker = observe(a_fleet(a_worker(state="busy")), a_sample(finished=[lease])).workers["w1"]
    assert (worker.lapsed_at, worker.acted_at) == (lapsed_at, acted_at)


def test_a_lease_that_is_gone_without_a_word_ended_by_time() -> None:
    fleet: Fleet = observe(a_fleet(a_worker(state="busy")), a_sample())
    assert (fleet.workers["w1"].state, fleet.workers["w1"].lapsed_at) == ("idle", NOW)
    fleet = observe(fleet, a_sample(at=NOW + 1, running=[a_lease("w1")]))
    assert fleet.workers["w1"].lapsed_at is None


def watch_after(
    gap: float, *, ages: tuple[float, ...] = (), before: WorkWatch | None = LONG, failed: bool = False
) -> WorkWatch:
    last = None if failed else a_sample(at=NOW - gap)
    return next_watch(before, a_sample(ages=ages), last=last, turn_seconds=1.0)


def test_a_watch_begins_anew_after_a_gap_or_a_look_that_failed() -> None:
    assert watch_after(1.0 + GAP_SECONDS).since == LONG.since
    assert watch_after(1.1 + GAP_SECONDS).since == NOW
    assert watch_after(1.0, failed=True).since == NOW
    assert watch_after(1.0, before=None).since == NOW


def test_work_is_untaken_since_it_waits_and_was_seen_to_wait() -> None:
    assert watch_after(1.0).untaken_since is None
    assert watch_after(1.0, ages=(50.0,)).untaken_since == NOW, "as far as is known"
    seen = WorkWatch(LONG.since, Monotonic(NOW - 20))
    assert watch_after(1.0, ages=(50.0,), before=seen).untaken_since == NOW - 20
    assert watch_after(1.0, ages=(3.0,), before=seen).untaken_since == NOW - 3, "what waited before was taken"
