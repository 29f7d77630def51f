"""The `towline` command line. Each command's module is imported only when that command runs."""

import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from orchestrator.cli.command_line.host_commands import refuse_url
from queue_core.cli import exits
from queue_core.cli.failure import run_command
from queue_core.cli.group import COMMANDS, INSPECT, MOVE, RUN, TASKS, CommandEntry, LazyGroup
from queue_core.cli.output import print_info
from queue_core.process.terminal import ignores_ctrl_c, open_missing_streams

COMPLETE_VARIABLE: Final = "_TOWLINE_COMPLETE"
"""Set by the script of `towline completion`, with the shell's name."""
_SETUP: Final = "Set up"
_HELP: Final = """\
Pull queues with worker fleets that size themselves.

Producers add tasks; workers lease them by tag, process them and delete them. A supervisor starts and stops workers so
that every task is leased in time. Begin with `towline demo`, then `towline init` and `towline up`. The manual, with a
tutorial, is at /docs/ of every server.
"""
_FLEET: Final = {
    "up": CommandEntry("orchestrator.cli.commands.up", RUN, "run the queue server and the supervisor in one process"),
    "supervise": CommandEntry(
        "orchestrator.cli.commands.up", RUN, "run only the supervisor; the queue server runs elsewhere"
    ),
    "reload": CommandEntry(
        "orchestrator.cli.commands.reload", RUN, "make the supervisor read its settings file again; print the changes"
    ),
    "drain": CommandEntry(
        "orchestrator.cli.commands.drain", RUN, "let one worker finish and go, or all on this host until undrain"
    ),
    "undrain": CommandEntry("orchestrator.cli.commands.drain", RUN, "allow workers on this host again after a drain"),
    "kill": CommandEntry("orchestrator.cli.commands.drain", RUN, "end a worker now; its tasks run again at once"),
    "replace": CommandEntry("orchestrator.cli.commands.drain", RUN, "replace all workers of a pool, new before old"),
    "demo": CommandEntry("orchestrator.cli.commands.demo", RUN, "watch a fleet work, grow, survive a kill and shrink"),
    "scale": CommandEntry(
        "orchestrator.cli.commands.overrides", RUN, "set a pool's size by hand for a while, regardless of its load"
    ),
    "pause": CommandEntry(
        "orchestrator.cli.commands.overrides", TASKS, "stop granting leases on a queue, or freeze a pool's size"
    ),
    "resume": CommandEntry(
        "orchestrator.cli.commands.overrides", TASKS, "grant leases on a queue again, or let a pool change its size"
    ),
    "export": CommandEntry(
        "orchestrator.cli.commands.export", MOVE, "export tasks to a file, or pools to KEDA, Helm, Cloud Run, ..."
    ),
    "pools": CommandEntry("orchestrator.cli.commands.fleet", INSPECT, "list pools: workers, targets and backlog"),
    "workers": CommandEntry(
        "orchestrator.cli.commands.fleet", INSPECT, "list workers: state, leases, memory; and recent deaths"
    ),
    "logs": CommandEntry(
        "orchestrator.cli.commands.logs", INSPECT, "print or follow what workers write, of a pool, a worker or a task"
    ),
    "why": CommandEntry("orchestrator.cli.commands.why", INSPECT, "explain a pool's size, or what happened to a task"),
    "why-died": CommandEntry(
        "orchestrator.cli.commands.why_died",
        INSPECT,
        "explain a worker's death and show what became of its tasks",
        "why_died",
    ),
    "health": CommandEntry(
        "orchestrator.cli.commands.health", INSPECT, "check whether the server and the supervisor are healthy"
    ),
    "top": CommandEntry("orchestrator.cli.commands.top", INSPECT, "watch pools, workers and waits live"),
    "plan": CommandEntry(
        "orchestrator.cli.commands.plan", INSPECT, "show what a supervisor would do now, without doing it"
    ),
    "simulate": CommandEntry(
        "orchestrator.cli.commands.simulate", INSPECT, "simulate arrivals: what they would cost, how late they would be"
    ),
    "backtest": CommandEntry(
        "orchestrator.cli.commands.backtest", INSPECT, "simulate the arrivals that the queue's own log recorded"
    ),
    "init": CommandEntry("orchestrator.cli.commands.init", _SETUP, "write a commented towline.yaml and an example"),
    "check": CommandEntry("orchestrator.cli.commands.settings", _SETUP, "list every mistake in the settings file"),
    "config": CommandEntry(
        "orchestrator.cli.commands.settings", _SETUP, "print the settings in force and where each comes from"
    ),
    "schema": CommandEntry(
        "orchestrator.cli.commands.settings", _SETUP, "print the settings file's JSON Schema, for editors"
    ),
    "doctor": CommandEntry("orchestrator.cli.commands.doctor", _SETUP, "find what may go wrong on this machine"),
    "completion": CommandEntry(
        "orchestrator.cli.command_line.completion", _SETUP, "print Tab completion for bash, zsh or fish"
    ),
}


_HANDLES_CTRL_C: Final = frozenset({"up", "serve", "supervise", "work", "console", "bridge", "demo", "run-appengine"})
"""Commands that stop at SIGINT even where it was ignored before."""


class TowlineGroup(LazyGroup):
    """The root command. Its commands that work only on the supervisor's host say so when they are given a `--url`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See `LazyGroup.get_command`."""
        made = super().get_command(ctx, cmd_name)
        if made is not None:
            refuse_url(made, cmd_name)
        return made


def command() -> LazyGroup:
    """Return the root command with every subcommand, grouped by section."""
    everything = {**COMMANDS, **_FLEET}
    sections = list(dict.fromkeys([RUN, *(entry.section for entry in everything.values())]))
    ordered = sorted(everything.items(), key=lambda item: sections.index(item[1].section))
    group = TowlineGroup(entries=dict(ordered), help=_HELP, epilog="Each command has examples in its own --help.")
    return click.version_option(package_name="towline", message="towline %(version)s")(group)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code. No arguments, and `help`, print the help."""
    open_missing_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if asked := os.environ.get(COMPLETE_VARIABLE):
        from orchestrator.cli.command_line.completion import complete  # no other command needs it

        if complete(asked, command):
            return exits.OK
    if not given or given[0] == "help":
        given = [*given[1:], "--help"]
    from queue_core.process import logs  # structlog is a third of what a Tab would wait for

    if given[0] not in _HANDLES_CTRL_C and ignores_ctrl_c():
        note = f"Ctrl-C is ignored, as it was where this command was started: stop it with `kill {os.getpid()}`"
        print_info(note)
    with logs.warnings_to_stderr():
        return run_command(command(), given)
