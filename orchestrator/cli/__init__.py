"""The `towline` command: everything a person types. A command is imported when it is run, and not before."""

from collections.abc import Sequence
from typing import Final

import click

from queue_core.cli.failure import run_command
from queue_core.cli.group import COMMANDS, INSPECT, MOVE, RUN, TASKS, CommandEntry, LazyGroup
from queue_core.process import logs
from queue_core.process.terminal import open_missing_streams

_SETUP: Final = "Set up"
_HELP: Final = """\
Pull queues whose workers look after themselves.

Producers add tasks; workers lease them by tag, do the work, delete them. A supervisor starts and stops workers so that
every task is leased in time. Begin with `towline demo`, then `towline init` and `towline up`.
"""
_FLEET: Final = {
    "up": CommandEntry("orchestrator.cli.commands.up", RUN, "queue server and supervisor in one process"),
    "supervise": CommandEntry("orchestrator.cli.commands.up", RUN, "the supervisor alone, beside a server elsewhere"),
    "reload": CommandEntry(
        "orchestrator.cli.commands.reload", RUN, "the supervisor reads its settings file again, and says what changed"
    ),
    "drain": CommandEntry(
        "orchestrator.cli.commands.drain", RUN, "no workers on this host until undrain: before a reboot"
    ),
    "undrain": CommandEntry("orchestrator.cli.commands.drain", RUN, "workers again after a drain"),
    "demo": CommandEntry(
        "orchestrator.cli.commands.demo", RUN, "watch a fleet do real work, grow, survive a kill, shrink"
    ),
    "scale": CommandEntry(
        "orchestrator.cli.commands.overrides", RUN, "a size by hand for a while, whatever min and max say"
    ),
    "pause": CommandEntry(
        "orchestrator.cli.commands.overrides", TASKS, "grant no more leases on a queue; or leave a pool at its size"
    ),
    "resume": CommandEntry(
        "orchestrator.cli.commands.overrides", TASKS, "grant leases again; or let a pool change its size"
    ),
    "export": CommandEntry(
        "orchestrator.cli.commands.export", MOVE, "tasks to a file; or pools to KEDA, compose or systemd"
    ),
    "pools": CommandEntry("orchestrator.cli.commands.fleet", INSPECT, "pools: workers, targets, and what waits"),
    "workers": CommandEntry(
        "orchestrator.cli.commands.fleet", INSPECT, "workers: state, leases, memory; and recent deaths"
    ),
    "why": CommandEntry("orchestrator.cli.commands.why", INSPECT, "why a pool has the size it has"),
    "why-died": CommandEntry(
        "orchestrator.cli.commands.why_died", INSPECT, "how a worker ended, what became of its tasks", "why_died"
    ),
    "health": CommandEntry(
        "orchestrator.cli.commands.health", INSPECT, "whether server and supervisor answer and are well"
    ),
    "top": CommandEntry("orchestrator.cli.commands.top", INSPECT, "pools, workers and waits, live"),
    "plan": CommandEntry("orchestrator.cli.commands.plan", INSPECT, "what a supervisor would do now, without doing it"),
    "simulate": CommandEntry(
        "orchestrator.cli.commands.simulate", INSPECT, "what arrivals would cost, and how late they would be"
    ),
    "backtest": CommandEntry(
        "orchestrator.cli.commands.backtest", INSPECT, "the same for what the queue's own log recorded"
    ),
    "init": CommandEntry("orchestrator.cli.commands.init", _SETUP, "write a commented towline.yaml and an example"),
    "check": CommandEntry("orchestrator.cli.commands.settings", _SETUP, "every mistake in the settings file"),
    "config": CommandEntry(
        "orchestrator.cli.commands.settings", _SETUP, "settings in force, and where each comes from"
    ),
    "schema": CommandEntry("orchestrator.cli.commands.settings", _SETUP, "the file's JSON Schema, for editors"),
    "doctor": CommandEntry("orchestrator.cli.commands.doctor", _SETUP, "what may go wrong on this machine"),
    "completion": CommandEntry("orchestrator.cli.completion", _SETUP, "Tab completion for bash, zsh and fish"),
}


def command() -> LazyGroup:
    """The whole command line."""
    everything = {**COMMANDS, **_FLEET}
    sections = list(dict.fromkeys([RUN, *(entry.section for entry in everything.values())]))
    ordered = sorted(everything.items(), key=lambda item: sections.index(item[1].section))
    group = LazyGroup(entries=dict(ordered), help=_HELP, epilog="Each command has examples in its own --help.")
    return click.version_option(package_name="towline", message="towline %(version)s")(group)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit code."""
    open_missing_streams()
    with logs.warnings_to_stderr():
        return run_command(command(), arguments)
