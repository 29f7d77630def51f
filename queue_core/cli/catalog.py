"""The commands over queues, for whoever builds a command line of them."""

from collections.abc import Mapping
from typing import Final

from queue_core.cli.group import CommandEntry

RUN: Final = "Run"
TASKS: Final = "Tasks"
MOVE: Final = "Move"
LOOK: Final = "Look"

COMMANDS: Final[Mapping[str, CommandEntry]] = {
    "serve": CommandEntry("queue_core.cli.commands.serve", RUN, "the queue server alone"),
    "work": CommandEntry("queue_core.cli.commands.work", RUN, "one worker: handlers of a Python module"),
    "run-appengine": CommandEntry(
        "queue_core.cli.commands.run_appengine", RUN, "a script for App Engine's SDK", "run_appengine"
    ),
    "add": CommandEntry("queue_core.cli.commands.add", TASKS, "add tasks: arguments, a file, lines of stdin"),
    "lease": CommandEntry("queue_core.cli.commands.leases", TASKS, "lease tasks by hand; prints their tokens"),
    "renew": CommandEntry("queue_core.cli.commands.leases", TASKS, "move the end of a lease"),
    "release": CommandEntry("queue_core.cli.commands.leases", TASKS, "give a lease back"),
    "delete": CommandEntry("queue_core.cli.commands.leases", TASKS, "finish tasks by token; or delete by name"),
    "peek": CommandEntry("queue_core.cli.commands.admin", TASKS, "look at tasks without leasing them"),
    "purge": CommandEntry("queue_core.cli.commands.admin", TASKS, "delete all tasks of a queue or tag"),
    "redrive": CommandEntry("queue_core.cli.commands.admin", TASKS, "make dead tasks ready again"),
    "pause": CommandEntry("queue_core.cli.commands.admin", TASKS, "grant no more leases on a queue"),
    "resume": CommandEntry("queue_core.cli.commands.admin", TASKS, "grant leases again"),
    "backup": CommandEntry(
        "queue_core.cli.commands.backup", MOVE, "a copy of an SQLite store, also while it is in use"
    ),
    "export": CommandEntry("queue_core.cli.commands.export_import", MOVE, "tasks of a store to a file of JSON lines"),
    "import": CommandEntry("queue_core.cli.commands.export_import", MOVE, "an export into a store", "import_"),
    "migrate": CommandEntry(
        "queue_core.cli.commands.migrate", MOVE, "queues from one store to another, leases and all"
    ),
    "queues": CommandEntry(
        "queue_core.cli.commands.queues", LOOK, "all queues: settings and counts; apply a queue.yaml"
    ),
    "stats": CommandEntry("queue_core.cli.commands.queues", LOOK, "counts and totals of a queue, or of each tag"),
    "events": CommandEntry("queue_core.cli.commands.events", LOOK, "what happened to tasks, as it happens"),
    "health": CommandEntry("queue_core.cli.commands.health", LOOK, "whether the server answers and is ready"),
    "bench": CommandEntry("queue_core.cli.commands.bench", LOOK, "how fast your disk lets the queue be"),
}
"""In the order of the help."""
