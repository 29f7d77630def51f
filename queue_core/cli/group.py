"""The command group: imports a command only when it is run, and suggests the right name for a misspelt one."""

import difflib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import click
from click.shell_completion import CompletionItem

from queue_core.cli.cut_output import WhenCut, guarded_output
from queue_core.cli.exits import MEANINGS
from queue_core.cli.help_pages import MAX_WIDTH, HelpContext, HelpPage

MAX_SUMMARY: Final = 90


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """An entry of a command group: the command's module and attribute, its section of the help, and a summary."""

    module: str
    section: str
    summary: str
    attribute: str = ""


class LazyGroup(click.Group):
    """A group of commands, each imported on demand."""

    context_class = HelpContext

    def __init__(self, *, entries: Mapping[str, CommandEntry], help: str, epilog: str = "") -> None:  # noqa: A002
        super().__init__(
            name="towline",
            help=help,
            epilog=epilog,
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_WIDTH},
        )
        self._entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """Return all names, in the order of the help."""
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command."""
        entry = self._entries.get(cmd_name)
        return None if entry is None else _import_command(entry, cmd_name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin with `incomplete`, without importing a command, as completion must be quick."""
        found = [
            CompletionItem(name, help=entry.summary)
            for name, entry in self._entries.items()
            if name.startswith(incomplete)
        ]
        return found or click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that `args` begin with. Raises a usage error for an unknown one, with similar names."""
        _check_name(ctx, args, self._entries)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write one block per section, without importing a command."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, entry in self._entries.items():
            sections.setdefault(entry.section, []).append((name, entry.summary))
        width = max(len(name) for name in self._entries)
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in rows])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in MEANINGS])
        super().format_epilog(ctx, formatter)


class Command(click.Command):
    """A command with examples at the end of its help. `when_cut` says what it does when its stdout is cut."""

    context_class = HelpContext
    examples: Sequence[str] = ()
    when_cut: WhenCut = "stop"

    def invoke(self, ctx: click.Context) -> object:
        """Run the command to its end. Raises `OutputCutError`."""
        with guarded_output(self.when_cut):
            return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        if self.examples:
            with formatter.section("Examples"):
                assert isinstance(formatter, HelpPage)
                formatter.write_examples(self.examples)
        super().format_epilog(ctx, formatter)


class CommandWithSubcommands(Command, click.Group):
    """A command that does something by itself and has subcommands, which are imported on demand."""

    def __init__(self, *, entries: Mapping[str, CommandEntry], **settings: object) -> None:
        super().__init__(invoke_without_command=True, **settings)  # type: ignore[arg-type]
        self._entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """Return all names."""
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the subcommand."""
        entry = self._entries.get(cmd_name)
        return None if entry is None else _import_command(entry, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See `LazyGroup.resolve_command`."""
        _check_name(ctx, args, self._entries)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the subcommands, without importing one."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self._entries.items()])


def command(
    name: str, *, examples: Sequence[str], when_cut: WhenCut = "stop", **settings: object
) -> "_CommandDecorator":
    """Return a decorator that makes a function a `Command`; one that changes something needs another `when_cut`."""
    return _CommandDecorator(name, examples, when_cut, settings)


@dataclass(frozen=True, slots=True)
class _CommandDecorator:
    name: str
    examples: Sequence[str]
    when_cut: WhenCut
    settings: Mapping[str, object]

    def __call__(self, function: object) -> Command:
        made = click.command(self.name, **{"cls": Command, **self.settings})(function)  # type: ignore[call-overload]
        if not isinstance(made, Command):
            raise TypeError(f"{self.name} is no command")
        made.examples = self.examples
        made.when_cut = self.when_cut
        return made


def _check_name(ctx: click.Context, args: Sequence[str], entries: Mapping[str, CommandEntry]) -> None:
    name = args[0] if args else ""
    if name and not name.startswith("-") and name not in entries:
        close = difflib.get_close_matches(name, entries, n=2, cutoff=0.5)
        meant = f"; did you mean {' or '.join(f'`{word}`' for word in close)}?" if close else ""
        raise click.UsageError(f"there is no command `{name}`{meant}", ctx)


def _import_command(entry: CommandEntry, name: str) -> click.Command:
    found = getattr(importlib.import_module(entry.module), entry.attribute or name)
    if not isinstance(found, click.Command):
        raise TypeError(f"{entry.module} has no command called {name}")
    return found


RUN: Final = "Run"
TASKS: Final = "Tasks"
MOVE: Final = "Move"
INSPECT: Final = "Inspect"

COMMANDS: Final[Mapping[str, CommandEntry]] = {
    "serve": CommandEntry("queue_core.cli.commands.serve", RUN, "run the queue server alone"),
    "work": CommandEntry("queue_core.cli.commands.work", RUN, "run one worker: the handlers of a Python module"),
    "console": CommandEntry(
        "queue_core.cli.commands.console", RUN, "show queues, pools, workers and tasks in a browser"
    ),
    "run-appengine": CommandEntry(
        "queue_core.cli.commands.run_appengine", RUN, "run a script for App Engine's SDK", "run_appengine"
    ),
    "add": CommandEntry("queue_core.cli.commands.add", TASKS, "add tasks from arguments, a file or lines of stdin"),
    "lease": CommandEntry("queue_core.cli.commands.leases", TASKS, "lease tasks by hand, and print their tokens"),
    "renew": CommandEntry("queue_core.cli.commands.leases", TASKS, "move the end of a lease"),
    "release": CommandEntry("queue_core.cli.commands.leases", TASKS, "give a lease back"),
    "delete": CommandEntry("queue_core.cli.commands.leases", TASKS, "finish tasks by token, or delete them by name"),
    "peek": CommandEntry("queue_core.cli.commands.admin", TASKS, "show tasks without leasing them"),
    "search": CommandEntry(
        "queue_core.cli.commands.search", TASKS, "find tasks by what they went through, and change all that match"
    ),
    "purge": CommandEntry("queue_core.cli.commands.admin", TASKS, "delete all tasks of a queue or tag"),
    "redrive": CommandEntry("queue_core.cli.commands.admin", TASKS, "make dead tasks ready again"),
    "pause": CommandEntry("queue_core.cli.commands.admin", TASKS, "grant no more leases on a queue"),
    "resume": CommandEntry("queue_core.cli.commands.admin", TASKS, "grant leases again"),
    "backup": CommandEntry("queue_core.cli.commands.backup", MOVE, "copy an SQLite store, also while it is in use"),
    "vacuum": CommandEntry("queue_core.cli.commands.vacuum", MOVE, "shrink the file of an SQLite store"),
    "export": CommandEntry(
        "queue_core.cli.commands.export_import", MOVE, "write tasks of a store to a file of JSON lines"
    ),
    "import": CommandEntry("queue_core.cli.commands.export_import", MOVE, "put an export into a store", "import_"),
    "migrate": CommandEntry(
        "queue_core.cli.commands.migrate", MOVE, "move queues from one store to another, leases too"
    ),
    "bridge": CommandEntry(
        "queue_core.cli.commands.bridge", MOVE, "move Celery's messages from another broker into queues"
    ),
    "queues": CommandEntry(
        "queue_core.cli.commands.queues", INSPECT, "list all queues: settings and counts; apply a queue.yaml"
    ),
    "stats": CommandEntry(
        "queue_core.cli.commands.queues", INSPECT, "show counts and totals of a queue, or of each tag"
    ),
    "schedules": CommandEntry(
        "queue_core.cli.commands.schedules", INSPECT, "list schedules: next and last ticks; run or pause one"
    ),
    "events": CommandEntry(
        "queue_core.cli.commands.events", INSPECT, "print lifecycle events of tasks, also as they happen"
    ),
    "health": CommandEntry("queue_core.cli.commands.health", INSPECT, "check whether the server is ready"),
    "bench": CommandEntry("queue_core.cli.commands.bench", INSPECT, "measure how many tasks a second your disk allows"),
}
"""In the order of the help."""
