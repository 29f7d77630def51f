"""`towline demo`: watch a fleet do real work."""

import os
import signal
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from orchestrator.base.clock import MonotonicClock, SystemMonotonicClock
from orchestrator.demo.frame import summary_of
from orchestrator.demo.library import find_modules
from orchestrator.demo.runner import Demo, DemoView, free_address, serve_console
from orchestrator.demo.script import (
    MAX_SECONDS,
    MAX_WORKERS_PER_POOL,
    MIN_SECONDS,
    SLO_SECONDS,
    recorded_shape,
    script_of,
    slo_for,
    start_seconds,
)
from orchestrator.demo.view import LineView, LiveView
from orchestrator.scaling.decision import SPAWNS_PER_CORE
from orchestrator.state.private_files import make_folder
from orchestrator.supervisor.unix_signals import handling_signals
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import DURATION, json_option
from queue_core.cli.output import can_redraw, print_info, terminal_width
from queue_core.cli.serving import console_sentence
from queue_core.cli.wrapping import wrapped
from queue_core.process.wording import counted, shown_bytes, shown_seconds

FOLDER_PREFIX: Final = "towline-demo-"
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@command(
    "demo",
    examples=(
        "towline demo",
        "towline demo --console",
        "towline demo --for 2m --dir ./report",
        "towline demo --for 60s --json | tail -1",
    ),
)
@click.option("--for", "seconds", type=DURATION, default="60s", show_default=True, help="How long, from 20s to 1h.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Work in this folder  [default: a new one]",
)
@click.option("--console", is_flag=True, help="Keep its pages open after its end, until Ctrl-C.")
@json_option
def demo(
    seconds: float,
    folder: Path | None,
    console: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> int:
    """Parse and render every module of Python's standard library with a fleet that sizes itself.

    Tasks arrive in a recorded pattern; half-way one busy worker is killed. The demo ends on its own and writes a report
    to open; Ctrl-C ends it sooner, with a report of what was done. The last line of stdout is the outcome, with --json
    as one JSON object. Exit code 1: a task was lost, or, unless you stopped it, not all were done.
    """
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        message = f"--for must be in [{MIN_SECONDS:.0f}, {MAX_SECONDS:.0f}] s: {seconds:g}"
        raise CommandError(message, code=exits.USAGE, fix="`towline demo --for 60s` shows everything")
    if folder is not None:
        folder = _prepared(folder)
    clock = SystemMonotonicClock()
    script = script_of(find_modules(), recorded_shape(), seconds=seconds, slo_seconds=_slo(clock))
    folder = folder or _prepared(None)
    with ExitStack() as stack:
        modules_and_tasks = f"{counted(len(script.modules), 'module')}, {counted(script.tasks, 'task')}"
        print_info(f"{modules_and_tasks}, {seconds:.0f} s, in {folder}")
        socket_folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="towline-")))
        listen = free_address() if console else f"unix:{socket_folder / 'queue.sock'}"
        if console:
            print_info(console_sentence(f"http://{listen}"))
        view = _view(stack, as_json=as_json)
        run_of = Demo(script, folder, listen=listen, clock=clock, view=view)
        with handling_signals(dict.fromkeys(STOP_SIGNALS, run_of.stop)):
            outcome = run_of.run()
    if as_json:
        click.echo(outcome.to_json())
    else:
        for line in summary_of(outcome):
            click.echo("\n".join(wrapped(line, width=terminal_width(), hang=2)))
    if earlier := left_by_earlier_demos(Path(tempfile.gettempdir()), besides=folder):
        print_info(earlier)
    if console and not run_of.run_state.is_stopped:
        stop = threading.Event()
        with handling_signals(dict.fromkeys(STOP_SIGNALS, stop.set)):
            serve_console(folder, listen, clock=clock, stop=stop, announce=_print_console)
    return exits.OK if outcome.is_good else exits.NEGATIVE


def _print_console(address: str) -> None:
    print_info(f"{address} shows its pools, tasks and deaths; Ctrl-C ends it")


def left_by_earlier_demos(root: Path, *, besides: Path) -> str:
    """Return what this user's demos have left in `root`, and how to remove it; "" if nothing besides a folder."""
    left = [path for path in root.glob(f"{FOLDER_PREFIX}*") if path.is_dir() and path.stat().st_uid == os.geteuid()]
    earlier = [path for path in left if path != besides]
    if not earlier:
        return ""
    size = shown_bytes(sum(file.lstat().st_size for path in earlier for file in path.rglob("*") if file.is_file()))
    removed = "them, and this report" if besides in left else "them"
    names = root / f"{FOLDER_PREFIX}*"
    return f"{counted(len(earlier), 'earlier demo')} left {size} in {root}: `rm -r {names}` removes {removed}"


def _slo(clock: MonotonicClock) -> float:
    """Return an slo that this machine's workers can keep. Time a slow start twice: the first may compile modules."""
    print_info("-- measuring how soon workers start here")
    at_a_time = min(MAX_WORKERS_PER_POOL, SPAWNS_PER_CORE * (os.cpu_count() or 1))
    slo = slo_for(start_seconds(clock, at_a_time=at_a_time))
    if slo > SLO_SECONDS:
        taken_seconds = start_seconds(clock, at_a_time=at_a_time)
        slo = slo_for(taken_seconds)
        taken = shown_seconds(taken_seconds)
        print_info(f"-- {at_a_time} workers that start together are ready after {taken}: the slo is {slo:.0f} s")
    return slo


def _view(stack: ExitStack, *, as_json: bool) -> DemoView:
    if as_json or not can_redraw():
        return LineView()
    from rich.console import Console

    return stack.enter_context(LiveView(Console()))


def _prepared(folder: Path | None) -> Path:
    """Return an empty folder for the demo. Raises `CommandError` when `folder` is in use."""
    if folder is None:
        return Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    if folder.exists() and any(folder.iterdir()):
        message = f"{folder} is not empty"
        raise CommandError(
            message, code=exits.CANT_CREATE, fix="name a new folder, or none for one in the temporary files"
        )
    make_folder(folder)
    return folder.resolve()
