"""`towline migrate`: queues from one store to another."""

from dataclasses import asdict

import click

from queue_core.cli import exits
from queue_core.cli.group import command
from queue_core.cli.opened_store import opened_store
from queue_core.cli.options import json_option
from queue_core.cli.output import print_json, say
from queue_core.cli.progress import progress
from queue_core.errors import StoreError
from queue_core.transfer.migration import MigrationResult, QueueMigration, queues_to_move, queues_to_undo


@command(
    "migrate",
    when_cut="tell",
    examples=(
        "towline migrate --from sqlite:////srv/towline.db --to postgresql:///work",
        "towline migrate --from sqlite:///old.db --to sqlite:///new.db --queue thumbs",
        "towline migrate --from sqlite:///old.db --to sqlite:///new.db --abort",
    ),
)
@click.option("--from", "source", required=True, metavar="URL", help="The store the queues are in.")
@click.option("--to", "target", required=True, metavar="URL", help="The store they go to.")
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Only this queue; again for more.")
@click.option("--abort", is_flag=True, help="Undo: open the old queues again, drop what was copied.")
@json_option
def migrate(
    source: str,
    target: str,
    queues: tuple[str, ...],
    abort: bool,  # noqa: FBT001  click's flag
    as_json: bool,  # noqa: FBT001
) -> int:
    """Move queues from one store to another: tasks with tags, etas, names, leases, the dead ones; and held names.

    One queue after the other is closed at the old store, copied, counted, and opened at the new one. Servers may run
    all the while. Broken off at any point, the same command goes on where it was. The old queue stays closed, its
    tasks a copy that nobody can lease; moved back, it is filled anew.

    \b
    From the moment a queue is closed,
    - producers and workers at the old store are refused, and told the new URL (QueueMovedError; HTTP 404
      `queue-moved`): a worker logs that, finishes what it has in hand, and exits with code 78;
    - what it has in hand it can neither renew nor delete any more, so it runs again at the new store: not before
      its lease at the old one has ended, so never twice at a time. To have nothing run twice, `towline pause` the
      queue first and wait until nothing is in flight.

    The queue must not exist at the new store, or be empty there; then its settings stay. --abort is refused once
    anything was leased, added or deleted at the new store: move it back instead.
    """
    with (
        opened_store(source, origin="--from", must="existing") as old,
        opened_store(target, origin="--to", must="existing" if abort else "existing or new") as new,
        progress("tasks", quiet=as_json) as bar,
    ):
        for queue in (queues_to_undo if abort else queues_to_move)(old, new, queues):
            move = QueueMigration(old, new, queue, progress=bar)
            try:
                if abort:
                    _tell_aborted(queue, move.abort(), old.url, as_json=as_json)
                else:
                    _tell_moved(move.run(), new.url, as_json=as_json)
            except (KeyboardInterrupt, StoreError):
                way_back = "" if abort else ", or with --abort to go back"
                say(f"{queue}: broken off, maybe closed at both ends: run the same command again to go on{way_back}")
                raise
        if not (as_json or abort):
            say(f"have servers, workers and producers use {new.url}: {old.url} refuses them now")
    return exits.OK


def _tell_moved(moved: MigrationResult, to: str, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(moved) | {"to": to})
    elif moved.was_done:
        say(f"{moved.queue}: is at {to} already; nothing was done")
    else:
        told = f"{moved.queue}: {moved.tasks:,} tasks and {moved.names:,} held names are at {to}"
        say(f"{told}, settings {moved.settings}")
        if moved.in_flight:
            say(f"{moved.queue}: {moved.in_flight:,} of them were in flight, and run again when those leases end")
        if moved.refused:
            say(f"{moved.queue}: {moved.refused:,} tasks were left out: their names are taken there")


def _tell_aborted(queue: str, dropped: int, back_at: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"queue": queue, "dropped": dropped, "at": back_at})
    else:
        say(f"{queue}: is open again at {back_at}; {dropped:,} copied tasks were dropped")
