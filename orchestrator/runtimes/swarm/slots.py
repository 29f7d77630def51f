"""Which slots of a service Swarm takes away when its replicas are lowered, and how far they may be lowered. Pure.

Source: moby/swarmkit, manager/orchestrator/replicated/services.go and slot.go (as in Docker 20.10): every slot whose
task will not be restarted counts, ended or not, and also one that is being removed, until its task is gone. Slots that
are on no node go first. Then those go that come last on the node with the most: on each node the running ones are
counted first, the others after them, in no order among themselves; the highest numbers go, and ties in any order.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from orchestrator.runtimes.swarm.tasks import SwarmTask


def slots(tasks: Sequence[SwarmTask]) -> int:
    """How many slots of one service there are, as Swarm counts them."""
    return len({task.slot for task in tasks})


def is_settled(tasks: Sequence[SwarmTask]) -> bool:
    """Whether the replicas of a service with these tasks may be changed at all.

    As long as a slot is being removed it is counted, but never again when it is gone: a service that grows meanwhile
    gets fewer tasks than asked for, or loses others than those it was asked to remove.
    """
    return not any(task.is_being_removed for task in tasks)


def expendable(tasks: Sequence[SwarmTask], *, going: Collection[str] = ()) -> int:
    """By how many the replicas of a service may be lowered so that none goes but ended tasks and those of `going`.

    `tasks` are all tasks of the service, `going` ids. That holds whichever way Swarm breaks its ties, also when tasks
    end meanwhile or start to run; not when new ones are made.
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
    """What the replicas of one service are to be set to so that `by` of its slots go; None: not now.

    Usually it has as many replicas as slots. With more there is a slot that `tasks` lack. It has fewer when it was
    lowered and Swarm did not look, as happens when it has just been made: only a change has it look again, so it is
    told again, if no more go by that than may.
    """
    wanted = slots(tasks) - by
    return wanted if wanted <= replicas <= slots(tasks) else None


def _kept(node: str, placed: Sequence[SwarmTask], *, is_free: Collection[str]) -> int:
    """The highest number that a task which must stay can have on its node."""
    here = [task for task in placed if task.node == node]
    staying = [task for task in here if task.id not in is_free]
    if not staying:
        return 0
    # One that is about to run may be told as running by the time of the change, or not.
    if not all(task.is_running for task in staying):
        return len(here)
    return sum(1 for task in here if task.is_running)
