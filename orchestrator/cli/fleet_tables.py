"""The rows and columns in which `pools`, `workers` and `top` show a fleet's figures. Pure."""

from collections.abc import Sequence
from typing import Final

from orchestrator.fleet.figures import PoolFigures, RunningTask, WorkerFigures
from queue_core.cli.tables import columns
from queue_core.process.wording import shown_bytes, shown_seconds, shown_setting

POOL_HEADS: Final = columns(
    *("POOL", ">WORKERS", ">TARGET", ">BUSY", ">READY", ">IN-FLIGHT", ">OLDEST", ">SLO", ">P99/SLO", "RULE"),
    *("LIMITED BY", "IN FORCE"),
    least=("P99/SLO", "IN-FLIGHT", "RULE", "SLO", "IN FORCE", "TARGET", "LIMITED BY", "BUSY", "OLDEST"),
    keeps=("WORKERS", "READY"),
    folds=("LIMITED BY", "IN FORCE"),
)
WORKER_HEADS: Final = columns(
    *("WORKER", "POOL", "STATE", ">FOR", "TASK", ">DONE", ">MEMORY", ">AGE", ">PID", "NOTE"),
    least=("PID", "AGE", "MEMORY", "POOL", "NOTE", "DONE", "TASK", "FOR"),
    keeps=("STATE",),
    folds=("NOTE",),
    cuts=("TASK",),
)
DEATH_HEADS: Final = columns("ENDED", "CAUSE", "WHY", ">LIVED", least=("LIVED",), folds=("WHY",))


def pool_row(pool: PoolFigures) -> tuple[object, ...]:
    """Return a pool as a row under `POOL_HEADS`."""
    return (
        pool.pool,
        pool.workers,
        pool.target,
        pool.busy,
        pool.ready,
        pool.in_flight,
        pool.oldest if pool.ready else "-",
        shown_setting(pool.slo_seconds) if pool.slo_seconds else "",
        "-" if pool.p99_over_slo is None else f"{pool.p99_over_slo:.2f}",
        pool.rule,
        ", ".join(pool.limited_by),
        "; ".join(pool.notes),
    )


def worker_row(worker: WorkerFigures) -> tuple[object, ...]:
    """Return a worker as a row under `WORKER_HEADS`."""
    return (
        worker.worker,
        worker.pool,
        worker.state,
        shown_seconds(worker.state_seconds),
        shown_tasks(worker.tasks, holding=worker.holding),
        worker.finished,
        shown_bytes(worker.memory_bytes) if worker.memory_bytes else "",
        shown_seconds(worker.age_seconds) if worker.age_seconds else "",
        str(worker.pid or ""),
        ", ".join(worker.notes),
    )


def shown_tasks(tasks: Sequence[RunningTask], *, holding: int) -> str:
    """Return the tasks that a worker holds in a few words: the longest held, and how many more; "" for none."""
    if not tasks:
        return "1 task" if holding == 1 else f"{holding:,} tasks" if holding else ""
    more = max(len(tasks), holding) - 1
    return tasks[0].task + (f" and {more:,} more" if more else "")
