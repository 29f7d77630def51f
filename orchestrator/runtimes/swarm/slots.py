"""Predict which slots of a service Swarm removes when its replicas are lowered, and how far they may be. Pure.

Source: moby/swarmkit, manager/orchestrator/replicated/services.go and slot.go (as in Docker 20.10): every slot whose
task will not be restarted counts, ended or not, also one that is being removed, until its task is gone. Slots on no
node go first. Then the last slots on the fullest node go: on each node the running ones are numbered first, the others
after them, in no order among themselves; the highest numbers go, and ties in any order.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from orchestrator.runtimes.swarm.tasks import SwarmTask


def slots(tasks: Sequence[SwarmTask]) -> int:
    """Return how many slots one service has, as Swarm counts them."""
    return len({task.slot for task in tasks})


def is_settled(tasks: Sequence[SwarmTask]) -> bool:
    """Return whether the replicas of a service with these tasks may be changed at all.

    A slot that is being removed is counted until it is gone, and not checked again then: a service that grows meanwhile
    gets fewer tasks than requested, or loses others than those to be removed.
    """
    return not any(task.is_being_removed for task in tasks)


def expendable(tasks: Sequence[SwarmTask], *, going: Collection[str] = ()) -> int:
    """Return by how much a service's replicas may be lowered so that only ended tasks and those of `going` are removed.

    `tasks` are all tasks of the service, `going` are task ids. This holds however Swarm breaks ties, and also if tasks
    end or start to run meanwhile; not if new ones are created.
    """
    if not is_settled(tasks):
        return 0
    numbered = Counter(task.slot for task in tasks)

    def is_free(task: SwarmTask) -> bool:
        return task.is_ended or task.id in going

    unnumbered = [task for task in tasks if not task.node or numbered[task.slot] > 1]
    if not all(is_free(task) for task in unnumbered):
        return 0
    placed = [task for task in tasks if task.node and numbered[task.slot] == 1]
    total = Counter(task.node for task in placed)
    kept = {node: _kept(node, placed, is_free={task.id for task in placed if is_free(task)}) for node in total}
    highest = max(kept.values(), default=0)
    return len({task.slot for task in unnumbered}) + sum(max(0, total[node] - highest) for node in total)


def lowered(tasks: Sequence[SwarmTask], *, replicas: int, by: int) -> int | None:
    """Return the number of replicas to set so that `by` of the service's slots are removed; None: not now.

    Usually replicas and slots are equal. More replicas: `tasks` lacks a slot. Fewer: it was lowered and Swarm did not
    check, as happens just after its creation; only an update makes Swarm check again, so it is set again, unless too
    many would go.
    """
    wanted = slots(tasks) - by
    return wanted if wanted <= replicas <= slots(tasks) else None


def _kept(node: str, placed: Sequence[SwarmTask], *, is_free: Collection[str]) -> int:
    """Return the highest number that a task which must stay can have on its node."""
    here = [task for task in placed if task.node == node]
    staying = [task for task in here if task.id not in is_free]
    if not staying:
        return 0
    # A task about to run may or may not be running by the time of the change.
    if not all(task.is_running for task in staying):
        return len(here)
    return sum(1 for task in here if task.is_running)
