"""What a supervisor makes of an API that fails as no test can ask a real one to: on its stand-in alone."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.base.errors import OrchestratorError, RuntimeUnavailableError
from orchestrator.runtime import SpawnRequest, WorkerHandle
from orchestrator.runtimes.kubernetes.watch import WatchTimes
from tests.support.eventually import eventually
from tests.support.kubernetes.bench import CLOCK, PodBench, pod_bench
from tests.support.kubernetes.objects import Change
from tests.support.kubernetes.server import LOST, Answer, StandIn, expired
from tests.support.kubernetes.stage import Stage

BUSY = Answer(429, "TooManyRequests", "too many requests, please try again later", {"Retry-After": "1"})


@pytest.fixture
def bench(fake: Stage, tmp_path: Path) -> Iterator[PodBench]:
    with pod_bench(fake, tmp_path) as made:
        yield made


def spawned(bench: PodBench, request: SpawnRequest) -> WorkerHandle:
    """Start one worker as a supervisor does, which asks again for as long as nobody knows whether it is there."""

    def started() -> WorkerHandle | None:
        try:
            return bench.runtime.spawn(request, now=CLOCK.monotonic())
        except RuntimeUnavailableError:
            return None

    handle = eventually(started)
    assert handle is not None
    return handle


@pytest.mark.parametrize("times", [1, 3])
def test_a_pod_whose_answer_was_lost_is_one_pod(bench: PodBench, fake: Stage, stand_in: StandIn, times: int) -> None:
    stand_in.answer("create", LOST, times=times)
    handle = spawned(bench, bench.request())
    assert len(fake.pods()) == 1
    assert {call.body["metadata"]["name"] for call in stand_in.asked("create")} == {fake.pod_name(handle.worker)}


def test_a_pod_of_that_name_which_is_not_ours_is_left_alone_and_another_name_taken(
    bench: PodBench, fake: Stage
) -> None:
    request = bench.request()
    taken = f"towline-{request.worker}"
    fake.stranger(taken, labels={"app": "another"})
    handle = spawned(bench, request)
    assert not handle.ref.endswith(f"#{taken}")
    assert fake.pod_name(handle.worker) == handle.ref.rpartition("#")[2]
    assert len(fake.pods()) == 2
    bench.runtime.drain(handle.worker)
    bench.exits()
    eventually(lambda: [pod["metadata"]["name"] for pod in fake.pods()] == [taken])


def test_an_apiserver_that_is_away_ends_nobody_and_its_gap_is_told_once(
    bench: PodBench, fake: Stage, stand_in: StandIn
) -> None:
    # 2i2c-org/infrastructure#1616: an observer never gives up.
    stays, ends = bench.up(), bench.up()
    eventually(lambda: bench.living() == {stays.worker, ends.worker})
    stand_in.answer("list", Answer(), times=6)
    stand_in.answer("watch", Answer(), times=6)
    stand_in.end_watches()
    fake.end(ends.worker, code=3)
    (told,) = bench.exits()
    assert (told.worker, told.code) == (ends.worker, 3)
    assert bench.living() == {stays.worker}
    assert bench.reap() == []


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_list_that_fails_is_not_a_list_without_pods(bench: PodBench, stand_in: StandIn, status: int) -> None:
    # jupyterhub/kubespawner#868
    handle = bench.up()
    eventually(lambda: handle.worker in bench.living())
    stand_in.answer("list", Answer(status, "Timeout", "the request timed out"), times=2)
    asked = len(stand_in.asked("list"))
    stand_in.end_watches(expired())
    eventually(lambda: len(stand_in.asked("list")) >= asked + 3)
    assert bench.living() == {handle.worker}
    assert bench.reap() == []


@pytest.mark.parametrize("code", [410, 500])
def test_an_error_inside_a_watch_is_followed_by_a_list_and_tells_each_end_once(
    bench: PodBench, fake: Stage, stand_in: StandIn, code: int
) -> None:
    # apache/airflow#21087, #12229, #44127, #35354, #37369
    first, second = bench.up(), bench.up()
    eventually(lambda: bench.living() == {first.worker, second.worker})
    fake.end(first.worker)
    assert [told.worker for told in bench.exits()] == [first.worker]
    lists = len(stand_in.asked("list"))
    stand_in.end_watches(expired(code))
    fake.end(second.worker, code=3)
    assert [told.worker for told in bench.exits()] == [second.worker]
    eventually(lambda: len(stand_in.asked("list")) > lists)
    assert bench.reap() == []


def test_a_version_that_is_too_old_as_an_answer_is_followed_by_a_list(
    bench: PodBench, fake: Stage, stand_in: StandIn
) -> None:
    handle = bench.up()
    eventually(lambda: handle.worker in bench.living())
    stand_in.holds_events = True
    fake.end(handle.worker, code=3)
    stand_in.objects.forget()
    stand_in.holds_events = False
    stand_in.end_watches()
    (told,) = bench.exits()
    assert (told.worker, told.code) == (handle.worker, 3)


def test_a_watch_without_bookmarks_goes_on_as_with_them(bench: PodBench, fake: Stage, stand_in: StandIn) -> None:
    stand_in.has_bookmarks = False
    handle = bench.up()
    stand_in.end_watches()
    fake.end(handle.worker)
    assert [told.worker for told in bench.exits()] == [handle.worker]


def test_a_half_open_watch_costs_no_more_than_its_time_limit(fake: Stage, stand_in: StandIn, tmp_path: Path) -> None:
    # apache/airflow#12644, kubernetes-client/python#1148, jupyterhub/kubespawner#209
    with pod_bench(fake, tmp_path, times=WatchTimes(silent=0.5)) as bench:
        handle = bench.up()
        eventually(lambda: stand_in.watches)
        for watch in list(stand_in.watches):
            watch.is_frozen = True
        fake.end(handle.worker, code=3)
        (told,) = bench.exits()
        assert (told.worker, told.code) == (handle.worker, 3)


def test_an_event_that_was_lost_is_found_by_the_next_comparison(fake: Stage, stand_in: StandIn, tmp_path: Path) -> None:
    with pod_bench(fake, tmp_path, times=WatchTimes(shortest=1, longest=1, compare=1)) as bench:
        handle = bench.up()
        eventually(lambda: bench.place(handle.worker).node)
        stand_in.reorders = lambda _: []
        fake.remove(handle.worker)
        (told,) = bench.exits()
        assert (told.worker, told.fate) == (handle.worker, "removed")


@pytest.mark.parametrize("seed", range(4))
def test_events_in_an_odd_order_or_twice_tell_each_end_once(
    bench: PodBench, fake: Stage, stand_in: StandIn, seed: int
) -> None:
    chance = random.Random(seed)

    def shuffled(changes: list[Change]) -> list[Change]:
        twice = changes + [change for change in changes if chance.random() < 0.5]
        chance.shuffle(twice)
        return twice

    stand_in.reorders = shuffled
    handles = [bench.up() for _ in range(5)]
    for number, handle in enumerate(handles):
        fake.end(handle.worker, code=number)
    told = bench.exits(5)
    assert sorted((one.worker, one.code) for one in told) == [(one.worker, n) for n, one in enumerate(handles)]
    stand_in.reorders = list
    stand_in.end_watches(expired())
    eventually(lambda: not fake.pods())
    assert bench.reap() == []


def test_an_apiserver_with_too_much_to_do_is_left_alone_for_as_long_as_it_says(
    bench: PodBench, fake: Stage, stand_in: StandIn
) -> None:
    stand_in.answer("create", BUSY)
    request = bench.request()
    with pytest.raises(OrchestratorError, match="too many requests"):
        bench.runtime.spawn(request, now=CLOCK.monotonic())
    asked = len(stand_in.asked("create"))
    with pytest.raises(OrchestratorError):
        bench.runtime.spawn(request, now=CLOCK.monotonic())
    assert len(stand_in.asked("create")) == asked
    assert spawned_when_let(bench, request) == request.worker
    assert len(fake.pods()) == 1


def spawned_when_let(bench: PodBench, request: SpawnRequest) -> str:
    def started() -> str:
        try:
            return bench.runtime.spawn(request, now=CLOCK.monotonic()).worker
        except OrchestratorError:
            return ""

    return eventually(started)


def test_hundreds_of_pods_are_found_again_page_by_page(bench: PodBench, fake: Stage, stand_in: StandIn) -> None:
    labels = {"towline.fleet": fake.anchor_uid, "towline.pool": "resize", "towline.spec": "x"}
    for number in range(250):
        fake.stranger(f"towline-resize-{number}", labels={**labels, "towline.worker": f"resize-{number}"})
    bench.reopen()
    assert len(bench.adopt()) == 250
    assert all(int(call.query["limit"]) <= 500 for call in stand_in.asked("list"))


def test_one_watch_follows_all_pods(bench: PodBench, stand_in: StandIn) -> None:
    # PrefectHQ/prefect#18004
    handles = [bench.up() for _ in range(5)]
    eventually(lambda: len(bench.living()) == len(handles))
    assert len(stand_in.watches) == 1


def test_a_pod_that_is_deleted_has_the_uid_that_was_meant(bench: PodBench, fake: Stage, stand_in: StandIn) -> None:
    handle = bench.up()
    uid = fake.pods()[0]["metadata"]["uid"]
    bench.runtime.drain(handle.worker)
    (call,) = eventually(lambda: stand_in.asked("delete"))
    assert call.body["preconditions"] == {"uid": uid}


def test_no_delete_has_ever_a_grace_of_nothing_on_a_node(bench: PodBench, fake: Stage, stand_in: StandIn) -> None:
    handle = bench.up()
    bench.runtime.drain(handle.worker)
    bench.runtime.kill(handle.worker)
    bench.runtime.kill(handle.worker)
    eventually(lambda: fake.grace_of(handle.worker) == 1)
    assert all(call.body.get("gracePeriodSeconds") != 0 for call in stand_in.asked("delete"))
