"""`towline migrate`: move queues from one store to another."""

from dataclasses import asdict

import click

from queue_core.cli import exits
from queue_core.cli.group import command
from queue_core.cli.opened_store import opened_store
from queue_core.cli.options import json_option
from queue_core.cli.output import print_info, print_json, progress
from queue_core.errors import StoreError
from queue_core.process.wording import counted
from queue_core.transfer.migration import MigrationResult, QueueMigration, queues_to_move, queues_to_undo
from queue_core.transfer.registered import RegisteredProgress


@command(
    "migrate",
    when_cut="stderr",
    examples=(
        "towline migrate --from sqlite:////srv/towline.db --to postgresql:///work",
        "towline migrate --from sqlite:///old.db --to sqlite:///new.db --queue thumbs",
        "towline migrate --from sqlite:///old.db --to sqlite:///new.db --abort",
    ),
)
@click.option("--from", "source", required=True, metavar="URL", help="The store the queues are in.")
@click.option("--to", "target", required=True, metavar="URL", help="The store they go to.")
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Only this queue; may be repeated.")
@click.option("--abort", is_flag=True, help="Undo: open the old queues again, delete the copies.")
@json_option
def migrate(
    source: str,
    target: str,
    queues: tuple[str, ...],
    abort: bool,  # noqa: FBT001  click's flag
    as_json: bool,  # noqa: FBT001
) -> int:
    """Move queues from one store to another: tasks with tags, etas, names and leases, dead ones too; and held names.

    Each queue is closed at the old store, copied, counted, and opened at the new one. Servers may keep running. If it
    is interrupted, run the same command again to continue. The old queue stays closed, and its tasks can't be leased;
    if it is moved back, it is filled again.

    \b
    From the moment a queue is closed,
    - producers and workers at the old store are refused, with the new URL (QueueMovedError; HTTP 404 `queue-moved`):
      a worker logs that, finishes its tasks, and exits with code 78;
    - tasks that are leased at the old store can no longer be renewed or deleted there, so they run again at the new
      store, after those leases have ended. To avoid that, `towline pause` the queue first and wait until nothing is
      in flight.

    The queue must be missing or empty at the new store; an existing one keeps its settings. --abort is refused after
    the first lease, add or delete at the new store: move the queue back instead.
    """
    with (
        opened_store(source, origin="--from", must="existing") as old,
        opened_store(target, origin="--to", must="existing" if abort else "existing or new") as new,
        progress("tasks", quiet=as_json) as bar,
    ):
        registered = RegisteredProgress(old, new, bar)
        for queue in (queues_to_undo if abort else queues_to_move)(old, new, queues):
            move = QueueMigration(old, new, queue, progress=bar if abort else registered)
            try:
                if abort:
                    _print_aborted(queue, move.abort(), old.url, as_json=as_json)
                else:
                    moved = move.run()
                    registered.end(queue)
                    _print_moved(moved, new.url, as_json=as_json)
            except (KeyboardInterrupt, StoreError):
                way_back = "" if abort else ", or with --abort to undo it"
                print_info(f"{queue}: interrupted, maybe closed in both stores: run the same command again{way_back}")
                raise
        if not (as_json or abort):
            print_info(f"point servers, workers and producers to {new.url}: {old.url} refuses them now")
    return exits.OK


def _print_moved(moved: MigrationResult, to: str, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(moved) | {"to": to})
    elif moved.was_done:
        print_info(f"{moved.queue}: is at {to} already; nothing was done")
    else:
        result = f"{moved.queue}: {counted(moved.tasks, 'task')} and {counted(moved.names, 'held name')} are at {to}"
        print_info(f"{result}, settings {moved.settings}")
        if moved.in_flight:
            print_info(f"{moved.queue}: {moved.in_flight:,} of them were in flight and run again when their leases end")
        if moved.refused:
            print_info(f"{moved.queue}: {counted(moved.refused, 'task')} left out: the name is taken there")


def _print_aborted(queue: str, dropped: int, back_at: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"queue": queue, "dropped": dropped, "at": back_at})
    else:
        print_info(f"{queue}: is open again at {back_at}; {counted(dropped, 'copied task')} deleted")
