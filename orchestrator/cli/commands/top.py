"""`towline top`: pools and workers, redrawn every second."""

import sys
import threading
from pathlib import Path

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrator.cli.commands.fleet import ShownFleet, pool_row, shown_fleet, worker_row
from orchestrator.cli.project_file import load_project
from orchestrator.clock import SystemMonotonicClock
from orchestrator.settings_file import state_of
from orchestrator.state.directory import StateDir
from queue_core.cli import exits
from queue_core.cli.group import command
from queue_core.cli.options import DURATION, file_option, json_option
from queue_core.cli.output import print_json
from queue_core.process.terminal import clean

_POOL_HEADS = (
    *("pool", "workers", "target", "busy", "ready", "in-flight", "oldest", "slo", "p99/slo", "rule", "limited by"),
    "in force",
)
_WORKER_HEADS = ("worker", "pool", "pid", "state", "for", "holds", "done", "memory", "age", "")
_LEFT = {"pool", "worker", "state", "rule", "limited by", "in force", ""}
_STATE_STYLES = {
    "busy": "green",
    "idle": "dim",
    "starting": "cyan",
    "draining": "yellow",
    "killed": "red",
    "unresponsive": "red",
}


@command("top", examples=("towline top", "towline top --every 500ms", "towline top --once"))
@click.option("--every", type=DURATION, default="1s", show_default=True, help="Time between refreshes.")
@click.option("--once", is_flag=True, help="Print once and exit.")
@file_option
@json_option
def top(every: float, once: bool, file: Path | None, as_json: bool) -> int:  # noqa: FBT001
    """Show pools, workers and waits live, until Ctrl-C. With --json: one object per refresh, one per line."""
    files = state_of(load_project(file))
    shown_fleet(files)
    pause = threading.Event()
    if as_json or once or not sys.stdout.isatty():
        _print(files, as_json=as_json)
        while not once and (as_json or sys.stdout.isatty()):
            pause.wait(every)
            _print(files, as_json=as_json)
        return exits.OK
    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        while True:
            live.update(_screen(files), refresh=True)
            pause.wait(max(0.1, every))


def _print(files: StateDir, *, as_json: bool) -> None:
    shown = shown_fleet(files)
    if as_json:
        print_json({"alive": shown.is_alive, **shown.snapshot})
    else:
        Console().print(_screen(files))


def _screen(files: StateDir) -> Group:
    shown = shown_fleet(files)
    return Group(_header(shown), "", _pools(shown), "", _workers(shown), *_last(files))


def _header(shown: ShownFleet) -> Text:
    phase, url = _text(shown.snapshot.get("phase")), _text(shown.snapshot.get("url"))
    state = Text(phase, style="green") if shown.is_alive else Text("not alive", style="red")
    return Text.assemble(("towline  ", "bold"), url, "  supervisor ", state, f"  {len(shown.workers)} workers")


def _pools(shown: ShownFleet) -> Table:
    table = _table(_POOL_HEADS)
    for name, pool in shown.pools.items():
        table.add_row(*(Text(_text(cell)) for cell in pool_row(name, pool, shown.workers)))
    return table


def _workers(shown: ShownFleet) -> Table:
    table = _table(_WORKER_HEADS)
    now = SystemMonotonicClock().wall_seconds()
    for worker in shown.workers:
        style = _STATE_STYLES.get(str(worker.get("state")), "")
        table.add_row(*(Text(_text(cell), style=style) for cell in worker_row(worker, now)))
    return table


def _last(files: StateDir) -> list[Text]:
    lines = [Text("")]
    for one in files.read_decisions(limit=5):
        message = f"{one.get('pool')}  {one.get('current')} -> {one.get('target')}  {one.get('rule')}: {one.get('why')}"
        lines.append(Text(clean(message), style="dim", no_wrap=True, overflow="ellipsis"))
    return lines


def _table(heads: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in heads:
        table.add_column(head, justify="left" if head in _LEFT else "right")
    return table


def _text(cell: object) -> str:
    return "-" if cell is None else clean(str(cell))
