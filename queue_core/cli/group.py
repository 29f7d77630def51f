"""The command group: imports a command only when it is run, and guesses what a misspelt one was meant to be."""

import difflib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import click
from click.shell_completion import CompletionItem

from queue_core.cli.exits import MEANINGS
from queue_core.cli.kept_output import WhenCut, kept_output

MAX_SUMMARY: Final = 90


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command's place: the module and the attribute that holds it, its section of the help, and one line about it."""

    module: str
    section: str
    summary: str
    attribute: str = ""


class LazyGroup(click.Group):
    """Commands by name, each imported on demand."""

    def __init__(self, *, entries: Mapping[str, CommandEntry], help: str, epilog: str = "") -> None:  # noqa: A002
        super().__init__(
            name="towline",
            help=help,
            epilog=epilog,
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
        )
        self._entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """All names, in the order of the help."""
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command."""
        entry = self._entries.get(cmd_name)
        return None if entry is None else _imported(entry, cmd_name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names that begin so, without importing a single command: Tab must be quick."""
        found = [
            CompletionItem(name, help=entry.summary)
            for name, entry in self._entries.items()
            if name.startswith(incomplete)
        ]
        return found or click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with; for an unknown one a usage error that says what is close."""
        _check_known(ctx, args, self._entries)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """One block per section, without importing a single command."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, entry in self._entries.items():
            sections.setdefault(entry.section, []).append((name, entry.summary))
        width = max(len(name) for name in self._entries)
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in rows])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in MEANINGS])
        super().format_epilog(ctx, formatter)


class Command(click.Command):
    """A command whose help ends with examples, as they are typed. `when_cut` is what it does without its stdout."""

    examples: Sequence[str] = ()
    when_cut: WhenCut = "stop"

    def invoke(self, ctx: click.Context) -> object:
        """Run the command to its end. Raises `OutputCutError`."""
        with kept_output(self.when_cut):
            return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples and the exit codes that are special to it."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"  {example}\n")
        super().format_epilog(ctx, formatter)


class CommandWithMore(Command, click.Group):
    """A command that does something by itself, and more by the names of subcommands, imported on demand."""

    def __init__(self, *, entries: Mapping[str, CommandEntry], **settings: object) -> None:
        super().__init__(invoke_without_command=True, **settings)  # type: ignore[arg-type]
        self._entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """All names."""
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the subcommand."""
        entry = self._entries.get(cmd_name)
        return None if entry is None else _imported(entry, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See `LazyGroup.resolve_command`."""
        _check_known(ctx, args, self._entries)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Subcommands, without importing a single one."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self._entries.items()])


def command(name: str, *, examples: Sequence[str], when_cut: WhenCut = "stop", **settings: object) -> "_Maker":
    """A decorator that makes a function a `Command`. One that changes something does not stop when stdout is cut."""
    return _Maker(name, examples, when_cut, settings)


@dataclass(frozen=True, slots=True)
class _Maker:
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


def _check_known(ctx: click.Context, args: Sequence[str], entries: Mapping[str, CommandEntry]) -> None:
    name = args[0] if args else ""
    if name and not name.startswith("-") and name not in entries:
        close = difflib.get_close_matches(name, entries, n=2, cutoff=0.5)
        meant = f"; did you mean {' or '.join(f'`{word}`' for word in close)}?" if close else ""
        raise click.UsageError(f"there is no command `{name}`{meant}", ctx)


def _imported(entry: CommandEntry, name: str) -> click.Command:
    found = getattr(importlib.import_module(entry.module), entry.attribute or name)
    if not isinstance(found, click.Command):
        raise TypeError(f"{entry.module} has no command called {name}")
    return found
