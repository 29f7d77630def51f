"""Arrivals from files, logs and shapes; and what is said about those that can't be used."""

import json
import math
from collections.abc import Iterable
from dataclasses import fields
from random import Random

import pytest

from orchestrator.simulation.workload import NEVER_SUCCEEDS, ServiceTimes, Workload, WorkloadError
from orchestrator.simulation.workloads.arrival_file import read_arrivals
from orchestrator.simulation.workloads.lifecycle_log import LogFilter, RecordedTasks, read_lifecycle, read_lifecycles
from orchestrator.simulation.workloads.shapes import read_shape
from queue_core import events
from queue_core.clock import Instant
from queue_core.events import QueueEvent
from queue_core.process.logs import LifecycleFile

SECOND = 1_000_000
NOON = 1_700_000_000


def arrivals(text: str, *, service: ServiceTimes | None = None, slot: float | None = None) -> Workload:
    lines = text.splitlines(keepends=True)
    return read_arrivals(lines, name="a.csv", rng=Random(1), service=service, slot_seconds=slot)


def log_of(*told: QueueEvent) -> list[str]:
    """Events as the log has them, a line each."""
    names = [field.name for field in fields(QueueEvent)]
    return [json.dumps({n: v for n in names if (v := getattr(event, n)) is not None}) + "\n" for event in told]


def event(kind: str, at: float, task: str = "t1", *, queue: str = "thumbs", **more) -> QueueEvent:
    return QueueEvent(kind, Instant(round((NOON + at) * SECOND)), queue, task, **more)


def recorded(lines: Iterable[str], *, since: float = -math.inf, **more) -> RecordedTasks:
    return read_lifecycle(lines, name="events.jsonl", rng=Random(1), wanted=LogFilter(**more), since=since)


def test_a_row_per_task_is_read_in_any_order_and_time_begins_with_the_first() -> None:
    workload = arrivals("# a comment\narrival_s,service_s,ok\n110,2,1\n\n100,3.5,0\n")
    assert (workload.ready_at, workload.service_seconds) == ([0.0, 10.0], [3.5, 2.0])


def test_a_row_per_slot_spreads_its_arrivals_over_the_slot() -> None:
    workload = arrivals("minute,count\n0,3\n1,0\n2,2\n", service=ServiceTimes(3.0, 0.0), slot=60.0)
    assert [int(at // 60) for at in workload.ready_at] == [0, 0, 0, 2, 2]
    assert set(workload.service_seconds) == {3.0}


def test_drawn_service_times_have_the_mean_and_the_spread_asked_for() -> None:
    drawn = ServiceTimes(4.0, 0.5).drawn(40_000, Random(1))
    mean = sum(drawn) / len(drawn)
    deviation = (sum((one - mean) ** 2 for one in drawn) / len(drawn)) ** 0.5
    assert mean == pytest.approx(4.0, rel=0.02)
    assert deviation / mean == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        pytest.param("", "a.csv", "empty", id="nothing"),
        pytest.param("1,2\n", "a.csv:1", "no column called arrival_s or count", id="no header"),
        pytest.param("arrival_s,service_s\n1,2\n3,x\n", "a.csv:3", "service_s must be a number", id="no number"),
        pytest.param("arrival_s,service_s\n-1,2\n", "a.csv:2", "0 or more: '-1'", id="negative"),
        pytest.param("arrival_s,service_s\n1\n", "a.csv:2", "no service_s", id="short row"),
        pytest.param("arrival_s\n1\n", "a.csv", "no column service_s", id="no service time"),
        pytest.param("arrival_s,service_s\n", "a.csv", "no row", id="header only"),
        pytest.param("count\n1\n", "a.csv", "length of a slot", id="no slot"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_its_place_and_a_fix(text: str, where: str, what: str) -> None:
    with pytest.raises(WorkloadError, match=what) as raised:
        arrivals(text)
    assert raised.value.where == where
    assert raised.value.fix


def test_a_count_is_a_whole_number() -> None:
    with pytest.raises(WorkloadError, match="whole number"):
        arrivals("count\n1.5\n", service=ServiceTimes(1.0), slot=60.0)


@pytest.mark.parametrize(
    ("shape", "tasks"),
    [
        ("poisson:2/s,for=1h", 7_200),
        ("even:30/m,for=1h", 1_800),
        ("sine:0/s..2/s,every=10m,for=1h", 3_600),
        ("steps:1/s..3/s,every=20m,for=1h", 7_200),
        ("bursts:100,every=10m,for=1h,base=1/m", 660),
    ],
)
def test_a_shape_has_about_as_many_tasks_as_its_rate_says(shape: str, tasks: int) -> None:
    workload = read_shape(shape, rng=Random(1))
    assert workload.tasks == pytest.approx(tasks, rel=0.06)
    assert workload.last_at <= 3_600.0
    assert list(workload.ready_at) == sorted(workload.ready_at)


def test_steps_are_low_first_and_then_high() -> None:
    workload = read_shape("steps:1/s..9/s,every=20m,for=20m", rng=Random(1))
    low = sum(1 for at in workload.ready_at if at < 600)
    assert low < workload.tasks / 5


@pytest.mark.parametrize(
    ("shape", "what"),
    [
        ("poison:2/s", "did you mean 'poisson'"),
        ("poisson", "no such shape"),
        ("poisson:2", "not a rate: '2'"),
        ("sine:2/s", "needs two rates"),
        ("poisson:2/s,servise=3s", "did you mean 'service'"),
        ("poisson:2/s,for=never", "for=never"),
        ("poisson:2/s,spread=much", "spread must be a number"),
        ("poisson:0/s", "no task comes"),
        ("poisson:9999/s,for=100d", "tasks, and"),
        ("bursts:2/s", "needs a number of tasks"),
    ],
)
def test_a_shape_that_cannot_be_used_is_told_with_a_fix(shape: str, what: str) -> None:
    with pytest.raises(WorkloadError) as raised:
        read_shape(shape, rng=Random(1))
    assert what in str(raised.value)
    assert raised.value.fix


def test_a_lifecycle_log_tells_when_a_task_could_be_leased_and_how_long_it_was_held() -> None:
    found = recorded(
        log_of(
            event(events.TASK_ADDED, 0.0),
            event(events.TASK_LEASED, 4.0, lease_number=1, waited_seconds=4.0),
            event(events.TASK_ADDED, 5.0, "t2"),
            event(events.TASK_DELETED, 7.0, held_seconds=3.0, waited_seconds=4.0),
            event(events.TASK_LEASED, 7.0, "t2", lease_number=1, waited_seconds=2.0),
            event(events.TASK_DELETED, 8.0, "t2", held_seconds=1.0, waited_seconds=2.0),
        )
    )
    assert (found.workload.ready_at, found.workload.service_seconds) == ([0.0, 5.0], [3.0, 1.0])
    assert (found.waits, found.begins_at, found.unfinished) == ((2.0, 4.0), NOON, 0)


def test_a_task_with_an_eta_could_be_leased_from_its_eta_on() -> None:
    found = recorded(
        log_of(
            event(events.TASK_ADDED, 0.0, "now"),
            event(events.TASK_ADDED, 0.0, "later"),
            event(events.TASK_DELETED, 1.0, "now", held_seconds=1.0, waited_seconds=0.0),
            event(events.TASK_LEASED, 62.0, "later", waited_seconds=2.0),
            event(events.TASK_DELETED, 65.0, "later", held_seconds=3.0, waited_seconds=2.0),
        )
    )
    assert list(found.workload.ready_at) == [0.0, 60.0]
    assert list(found.workload.added_at or ()) == [0.0, 0.0]


def test_failed_leases_and_deaths_are_told_apart() -> None:
    found = recorded(
        log_of(
            event(events.TASK_ADDED, 0.0, "twice"),
            event(events.LEASE_RELEASED, 1.0, "twice", held_seconds=1.0, waited_seconds=0.0),
            event(events.LEASE_EXPIRED, 9.0, "twice", held_seconds=5.0, waited_seconds=0.0),
            event(events.TASK_DELETED, 12.0, "twice", held_seconds=2.0, waited_seconds=0.5),
            event(events.TASK_ADDED, 20.0, "never"),
            event(events.LEASE_RELEASED, 21.0, "never", held_seconds=1.0, waited_seconds=0.0),
            event(events.TASK_DIED, 21.0, "never", held_seconds=1.0, waited_seconds=0.0, reason="no"),
        )
    )
    assert list(found.workload.failures or ()) == [2, NEVER_SUCCEEDS]
    assert found.waits == (0.0, 0.5)


def test_a_task_deleted_by_name_before_any_lease_needed_nobody() -> None:
    found = recorded(
        log_of(
            event(events.TASK_ADDED, 0.0, "gone"),
            event(events.TASK_DELETED, 1.0, "gone"),
            event(events.TASK_ADDED, 2.0),
            event(events.TASK_DELETED, 3.0, held_seconds=1.0, waited_seconds=0.0),
        )
    )
    assert found.workload.tasks == 1


def test_only_the_tasks_asked_for_are_read() -> None:
    lines = log_of(
        *(
            event(kind, at, f"{queue}{tag}{at:.0f}", queue=queue, tag=tag, **more)
            for at in (0.0, 100.0)
            for queue, tag in (("thumbs", "resize"), ("thumbs", None), ("mails", None))
            for kind, more in (
                (events.TASK_ADDED, {}),
                (events.TASK_DELETED, {"held_seconds": 1.0, "waited_seconds": 0.0}),
            )
        )
    )
    assert recorded(lines, queue="thumbs").workload.tasks == 4
    assert recorded(lines, queue="thumbs", tags=frozenset({"resize"})).workload.tasks == 2
    assert recorded(lines, queue="thumbs", untagged=True, since=NOON + 50).workload.tasks == 1
    with pytest.raises(WorkloadError, match="2 queues: mails, thumbs"):
        recorded(lines)


def test_the_tasks_of_several_pools_are_read_in_one_pass_each_the_newest_of_its_own() -> None:
    ended = {"held_seconds": 1.0, "waited_seconds": 0.5}
    lines = log_of(
        *(
            event(kind, at, f"{queue}{tag}{at:.0f}", queue=queue, tag=tag, **more)
            for at in range(0, 60, 10)
            for queue, tag in (("thumbs", "resize"), ("thumbs", None), ("mails", None))
            for kind, more in ((events.TASK_ADDED, {}), (events.TASK_DELETED, ended))
        )
    )
    wanted = {
        "resize": LogFilter("thumbs", frozenset({"resize"})),
        "thumbs": LogFilter("thumbs"),
        "mails": LogFilter("mails", untagged=True),
        "other": LogFilter("other"),
    }
    found = read_lifecycles(lines, name="a.jsonl", rng=Random(1), wanted=wanted, since=NOON + 5.0, newest=8)
    assert {pool: (one.workload.tasks, len(one.waits), one.left_out) for pool, one in found.items()} == {
        "resize": (5, 5, 0),
        "thumbs": (8, 8, 2),
        "mails": (5, 5, 0),
    }
    assert found["thumbs"].begins_at == NOON + 20.0
    alone = recorded(lines, queue="thumbs", tags=frozenset({"resize"}), since=NOON + 5.0)
    assert found["resize"].waits == alone.waits


def test_tasks_that_are_not_over_take_as_long_as_others_did() -> None:
    found = recorded(
        log_of(
            event(events.TASK_ADDED, 0.0),
            event(events.TASK_DELETED, 1.0, held_seconds=7.0, waited_seconds=0.0),
            event(events.TASK_ADDED, 2.0, "still there"),
        )
    )
    assert found.unfinished == 1
    assert list(found.workload.service_seconds) == [7.0, 7.0]


def test_a_last_line_that_a_crash_cut_is_passed_over_but_no_other() -> None:
    whole = log_of(event(events.TASK_ADDED, 0.0), event(events.TASK_DELETED, 1.0, held_seconds=1.0, waited_seconds=0.0))
    assert recorded([*whole, '{"event":"task.ad']).workload.tasks == 1
    with pytest.raises(WorkloadError) as raised:
        recorded([whole[0], "oops\n", whole[1]])
    assert raised.value.where == "events.jsonl:2"


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        pytest.param([], "empty", id="nothing"),
        pytest.param(log_of(event(events.TASK_ADDED, 0.0)), "no task in it came and went", id="nothing done"),
        pytest.param(['{"event":"task.added","at":1,"queue":"q","count":5}\n'], "lifecycle: batch", id="batches"),
    ],
)
def test_a_log_that_cannot_be_used_is_told_with_a_fix(lines: list[str], what: str) -> None:
    with pytest.raises(WorkloadError, match=what) as raised:
        recorded(lines)
    assert raised.value.fix


def test_what_the_queue_writes_is_what_is_read(tmp_path) -> None:
    path = tmp_path / "events.jsonl"
    log = LifecycleFile(path, lifecycle="task")
    log.record([event(events.TASK_ADDED, 0.0), event(events.TASK_LEASED, 2.0, waited_seconds=2.0)])
    log.record([event(events.TASK_DELETED, 3.0, held_seconds=1.0, waited_seconds=2.0, worker="w", lease_number=1)])
    log.close()
    with path.open() as lines:
        assert recorded(lines).waits == (2.0,)
