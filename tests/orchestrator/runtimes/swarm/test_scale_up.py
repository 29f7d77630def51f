"""One worker more, whatever Swarm does with the request."""

from dataclasses import dataclass, field, replace

import pytest

from orchestrator.base.errors import RuntimeUnavailableError, SpawnError
from orchestrator.runtimes.swarm.manager import ChangedMeanwhileError
from orchestrator.runtimes.swarm.scale_up import ScaleUp
from orchestrator.runtimes.swarm.service import ServiceBody
from orchestrator.runtimes.swarm.tasks import SwarmService, SwarmTask

BODY = ServiceBody("d1", "towline-s-resize-d1", "resize", {}, {})


def a_task(
    number: int, *, service: str = "towline-s-resize-d1", state: str = "running", desired: str = "running"
) -> SwarmTask:
    return SwarmTask(f"t{number}", service, number, "node", state, desired, float(number))


@dataclass
class FakeManager:
    """A swarm in which a change of replicas makes tasks at once, unless `is_stuck`; `conflicts` changes are refused."""

    tasks_by_id: dict[str, SwarmTask] = field(default_factory=dict)
    known: dict[str, SwarmService] = field(default_factory=dict)
    scaled: list[tuple[str, int]] = field(default_factory=list)
    conflicts: int = 0
    is_stuck: bool = False
    is_away: bool = False

    def services(self, *, digest: str = "") -> list[SwarmService]:
        if self.is_away:
            raise RuntimeUnavailableError("no leader")
        return list(self.known.values())

    def tasks(self, *, service: str = "") -> list[SwarmTask]:
        return [task for task in self.tasks_by_id.values() if task.service == service]

    def create(self, body: ServiceBody, *, generation: int, replicas: int) -> str:
        name = body.name(generation)
        self.known[name] = SwarmService(name, name, 1, 0, body.pool, "spec")
        self.scale(self.known[name], replicas)
        return name

    def scale(self, service: SwarmService, replicas: int) -> None:
        if self.conflicts:
            self.conflicts -= 1
            raise ChangedMeanwhileError("update out of sequence")
        self.scaled.append((service.name, replicas))
        self.known[service.id] = replace(service, replicas=replicas, version=service.version + 1)
        slots = {task.slot for task in self.tasks(service=service.id)}
        free = (slot for slot in range(1, 100) if slot not in slots)
        for slot in [] if self.is_stuck else [next(free) for _ in range(replicas - len(slots))]:
            task = replace(a_task(len(self.tasks_by_id) + 1, service=service.id), slot=slot)
            self.tasks_by_id[task.id] = task

    def remove(self, service: SwarmService) -> None:
        del self.known[service.id]


@dataclass
class Grown:
    """A `ScaleUp` over a fake; `workers` are the tasks that are workers."""

    manager: FakeManager
    workers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.scale_up = ScaleUp(self.manager, knows=self.workers.__contains__, task_seconds=0.05)

    def one_more(self) -> SwarmTask:
        task = self.scale_up.one_more(BODY)
        self.workers.add(task.id)
        return task

    def has(self, *tasks: SwarmTask, replicas: int) -> None:
        self.manager.known[BODY.stem] = SwarmService(BODY.stem, BODY.stem, 1, replicas, "resize", "spec")
        self.manager.tasks_by_id |= {task.id: task for task in tasks}


@pytest.fixture
def grown() -> Grown:
    return Grown(FakeManager())


def test_the_first_worker_makes_the_service_and_the_next_ones_grow_it(grown: Grown) -> None:
    slots = [grown.one_more().slot for _ in range(3)]
    assert slots == [1, 2, 3]
    assert grown.manager.scaled == [(BODY.stem, 1), (BODY.stem, 2), (BODY.stem, 3)]
    assert grown.scale_up.current == {"resize": BODY.stem}


def test_slots_of_ended_tasks_count_as_they_do_for_swarm(grown: Grown) -> None:
    grown.has(a_task(1, state="complete", desired="shutdown"), replicas=1)
    assert grown.one_more().slot == 2
    assert grown.manager.scaled == [(BODY.stem, 2)]


def test_a_task_that_is_nobodys_is_taken_before_another_is_made(grown: Grown) -> None:
    grown.has(a_task(1), replicas=1)
    assert grown.one_more().id == "t1"
    assert grown.manager.scaled == []


def test_a_task_that_swarm_has_asked_to_end_is_not_taken(grown: Grown) -> None:
    grown.has(a_task(1, desired="shutdown"), replicas=1)
    assert grown.one_more().id != "t1"


def test_a_service_with_fewer_tasks_than_replicas_is_told_again(grown: Grown) -> None:
    grown.has(a_task(1), replicas=2)
    grown.workers.add("t1")
    assert grown.one_more().slot == 2
    assert grown.manager.scaled == [(BODY.stem, 2)]


def test_a_service_that_workers_are_leaving_is_left_alone_and_another_one_made(grown: Grown) -> None:
    grown.has(a_task(1), a_task(2, desired="remove"), replicas=1)
    grown.workers |= {"t1", "t2"}
    assert grown.one_more().service == f"{BODY.stem}-2"
    assert grown.scale_up.current == {"resize": f"{BODY.stem}-2"}


def test_a_change_that_somebody_else_was_faster_with_is_tried_again(grown: Grown) -> None:
    grown.has(replicas=0)
    grown.manager.conflicts = 2
    assert grown.one_more().slot == 1


def test_a_service_that_somebody_else_keeps_changing_is_given_up_for_this_time(grown: Grown) -> None:
    grown.has(replicas=0)
    grown.manager.conflicts = 100
    with pytest.raises(SpawnError, match="out of sequence"):
        grown.one_more()


def test_a_task_that_never_comes_leaves_the_service_as_it_was(grown: Grown) -> None:
    grown.has(a_task(1), replicas=1)
    grown.workers.add("t1")
    grown.manager.is_stuck = True
    with pytest.raises(SpawnError, match=r"no task within 0\.05 s"):
        grown.one_more()
    assert grown.manager.scaled == [(BODY.stem, 2), (BODY.stem, 1)]


def test_a_first_task_that_never_comes_leaves_no_service(grown: Grown) -> None:
    grown.manager.is_stuck = True
    with pytest.raises(SpawnError):
        grown.one_more()
    assert grown.manager.known == {}


def test_a_manager_that_is_away_is_no_fault_of_the_pool(grown: Grown) -> None:
    grown.manager.is_away = True
    with pytest.raises(RuntimeUnavailableError):
        grown.one_more()


def test_a_list_of_tasks_from_before_or_during_a_start_is_known_to_be_old(grown: Grown) -> None:
    before = grown.scale_up.changes
    during: list[int] = []
    grown.scale_up = ScaleUp(
        grown.manager, knows=lambda _task: bool(during.append(grown.scale_up.changes)), task_seconds=0.05
    )
    grown.scale_up.one_more(BODY)
    assert len({before, *during, grown.scale_up.changes}) == 3
