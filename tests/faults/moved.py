"""I13 and I19 after a move: a queue takes its tasks with payloads, headers and attempts along to another store."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from queue_core.attempts.attempt import MAX_ATTEMPTS
from queue_core.store import Store
from queue_core.transfer.migration import QueueMigration
from tests.faults.lives import KeptAttempt, TaskInStore


def move_all(source: Store, target: Store) -> None:
    """Move all queues to another store."""
    with source.read() as transaction:
        names = [spec.name for spec in transaction.queues()]
    for name in names:
        QueueMigration(source, target, name, progress=lambda *_: None).run()


def changed_on_the_way(before: Sequence[TaskInStore], after: Sequence[TaskInStore]) -> Iterator[tuple[str, str]]:
    """Yield each invariant that a move broke, and how. Pure.

    Tasks without a name have other ids there, so they are known by their uids; a lease may expire meanwhile.
    """
    there = {task.uid: task for task in after}
    for task in before:
        moved = there.get(task.uid)
        if moved is None:
            yield "I1", f"{task.uid} did not arrive where it was moved to"
            continue
        if moved.digest != task.digest:
            yield "I13", f"{task.uid} arrived as {moved.digest}, it was {task.digest}"
        kept, arrived = _without_tokens(task), _without_tokens(moved)
        if task.state == "LEASED" and arrived and arrived[-1].outcome == "expired" and arrived != kept:
            kept = [*kept, arrived[-1]][-MAX_ATTEMPTS:]
        if arrived != kept:
            yield "I19", f"{task.uid} arrived with {len(arrived)} attempts, others than the {len(kept)} it had"


def _without_tokens(task: TaskInStore) -> list[KeptAttempt]:
    return [replace(attempt, token="") for attempt in task.attempts or ()]
