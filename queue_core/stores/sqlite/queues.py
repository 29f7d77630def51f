"""The verbs over queues themselves: create, set, list, pause, drop."""

from typing import Literal

from queue_core.clock import Instant
from queue_core.stores.sqlite.administering import INDEX_OF_STATE
from queue_core.stores.sqlite.step import Step, settings_of, spec_of
from queue_core.task import QueueSpec


def put_queue(step: Step, spec: QueueSpec, *, now: Instant) -> bool:
    """See `Transaction.put_queue`."""
    connection = step.connection
    step.told = True
    row = connection.execute("SELECT id, settings FROM queues WHERE name = ?", (spec.name,)).fetchone()
    settings = settings_of(spec)
    if row is not None:
        if row[1] != settings:
            connection.execute("UPDATE queues SET settings = ? WHERE id = ?", (settings, row[0]))
            step.catalog_changed()
        return False
    connection.execute("INSERT INTO queues (name, settings) VALUES (?, ?)", (spec.name, settings))
    connection.execute(
        "INSERT INTO counts (queue, changed_at) SELECT id, ? FROM queues WHERE name = ?", (now, spec.name)
    )
    step.catalog_changed()
    return True


def all_queues(step: Step) -> list[QueueSpec]:
    """See `Transaction.queues`."""
    rows = step.connection.execute("SELECT name, settings, paused, moved_to FROM queues ORDER BY name").fetchall()
    return [spec_of(name, settings, paused=paused, moved_to=moved_to) for name, settings, paused, moved_to in rows]


def set_paused(step: Step, name: str, paused: Literal["paused", "running"]) -> bool:
    """See `Transaction.set_paused`."""
    queue = step.queue(name)
    step.told = True
    if queue.spec.paused == (paused == "paused"):
        return False
    step.connection.execute("UPDATE queues SET paused = ? WHERE id = ?", (int(paused == "paused"), queue.id))
    step.catalog_changed()
    return True


_ALL_TASKS = (
    "FROM tasks INDEXED BY tasks_ready WHERE queue = ?1 AND state = 0 AND tag > 0",
    "FROM tasks INDEXED BY tasks_ready_by_tag WHERE tag = -?1 AND state = 0",
    *(
        f"FROM tasks INDEXED BY {index} WHERE queue = ?1 AND state = {int(state)}"
        for state, index in INDEX_OF_STATE.items()
    ),
)


def delete_queue(step: Step, name: str) -> int:
    """See `Transaction.delete_queue`."""
    queue = step.queue(name)
    connection = step.connection
    step.told = True
    step.write()  # so that nothing gathered is written to rows that are gone
    count = 0
    for chosen in _ALL_TASKS:
        row = connection.execute(f"SELECT count(*) {chosen}", (queue.id,)).fetchone()
        count += 0 if row is None else int(row[0])
        connection.execute(
            f"DELETE FROM payloads WHERE id IN (SELECT id {chosen} AND payload IS NULL)",  # noqa: S608
            (queue.id,),
        )
        connection.execute(f"DELETE {chosen}", (queue.id,))
    connection.execute("DELETE FROM names WHERE queue = ?", (queue.id,))
    connection.execute("DELETE FROM counts WHERE queue = ?", (queue.id,))
    connection.execute("DELETE FROM samples WHERE id >= ? AND id < ?", (queue.id << 40, (queue.id + 1) << 40))
    connection.execute("DELETE FROM queues WHERE id = ?", (queue.id,))
    step.catalog_changed()
    return count
