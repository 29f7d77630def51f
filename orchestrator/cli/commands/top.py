"""`towline top`: pools and workers of now, redrawn every second, and keys to look closer and to scale."""

import contextlib
import io
import sys
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Final, Unpack, cast

import click

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.base.json_fields import known_count_in, list_in, mapping_of
from orchestrator.cli.commands.overrides import moment
from orchestrator.cli.live_fleet import FleetReader, FleetSource, Json, ShownFleet, fleet_source, json_times
from orchestrator.cli.supervisor_calls import supervisor_at
from orchestrator.cli.supervisor_hosts import host_option
from orchestrator.cli.top.full_screen import FullScreen
from orchestrator.cli.top.screen import Marks, fleet_text, screen
from orchestrator.cli.top.view import Action, TopView, chosen, pressed, scaled_size, shown_pools
from orchestrator.config.overrides import Expiry, Overrides, ScaleOverride, describe_overrides
from orchestrator.fleet.figures import PoolFigures
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import DurationType, target_options
from queue_core.cli.output import can_redraw, echo, print_json, terminal_width, wants_colour
from queue_core.cli.target import TargetOptions
from queue_core.cli.wrapping import ASCII_BLOCKS, BLOCKS, wrapped
from queue_core.client.http.recent_deaths import MAX_DEATHS_COUNTED

MIN_SECONDS: Final = 0.1
"""The shortest time between two refreshes."""
SCALE_SECONDS: Final = 3_600.0
"""How long a size set by a key lasts, as with `towline scale`."""


@command(
    "top",
    examples=("towline top", "towline top --every 500ms", "towline top --once", "towline top --url http://host:7878"),
)
@click.option(
    "--every", type=DurationType(MIN_SECONDS), default="1s", show_default=True, help="Time between refreshes."
)
@click.option("--once", is_flag=True, help="Print once and exit.")
@host_option
@target_options
def top(every: float, once: bool, as_json: bool, **where: Unpack[TargetOptions]) -> int:  # noqa: FBT001
    """Show pools, workers and waits live until `q`; `?` lists the keys.

    Into a pipe it prints once; with --json one object per refresh, one per line. On a terminal with TERM=dumb it prints
    anew at each refresh. --url shows the fleet of a supervisor elsewhere.
    """
    source = fleet_source(**where)
    with FleetReader(source) as reader:
        shown = reader.read(deaths=MAX_DEATHS_COUNTED)
        is_full = not (as_json or once) and can_redraw()
        if not is_full:
            goes_on = not once and (as_json or terminal_width() is not None)
            return _print(reader, shown, every if goes_on else None, as_json=as_json)
    _watch(source, shown, every, where)
    return exits.OK


def _print(reader: FleetReader, shown: ShownFleet, every: float | None, *, as_json: bool) -> int:
    pause = threading.Event()
    while True:
        if as_json:
            age = round(shown.figures_age_seconds, 3)
            snapshot = cast("Json", json_times(shown.snapshot))
            print_json({"alive": shown.is_alive, "drained": shown.is_drained, "age_seconds": age} | snapshot)
        else:
            for line in fleet_text(shown, width=terminal_width(), marks=Marks(glyphs=_marks().glyphs)):
                echo(line)
        if every is None:
            return exits.OK
        pause.wait(every)
        shown = reader.read(deaths=MAX_DEATHS_COUNTED)
        if not as_json:
            echo()


class _Reads:
    """Reads the fleet again and again in a thread of its own: a queue that does not answer holds up no key."""

    def __init__(self, source: FleetSource, first: ShownFleet, every: float, screen: FullScreen) -> None:
        self._latest = first
        self._failure: Exception | None = None
        self._source = source
        self._every = every
        self._screen = screen
        self._clock = SystemMonotonicClock()
        self._read_at = self._clock.monotonic()
        self._is_over = False
        self._due = threading.Event()
        self._thread = threading.Thread(target=self._work, name="towline-top", daemon=True)
        self._thread.start()

    @property
    def latest(self) -> ShownFleet:
        """The fleet as last read. Raises what ended the thread."""
        if self._failure is not None:
            raise self._failure
        return self._latest

    def soon(self) -> None:
        """Read at once."""
        self._due.set()

    def end(self) -> None:
        """End the thread, once a call of it that is under way has ended."""
        self._is_over = True
        self._due.set()

    def _work(self) -> None:
        try:
            with FleetReader(self._source) as reader:
                while not self._is_over:
                    self._latest = self._read(reader)
                    self._screen.wake()
                    self._due.wait(self._every)
                    self._due.clear()
        except Exception as error:  # noqa: BLE001 - raised in the thread that draws
            self._failure = error
            self._screen.wake()

    def _read(self, reader: FleetReader) -> ShownFleet:
        """Return the fleet of now; where nothing answers, the last one, which says how old it is."""
        before, now = self._read_at, self._clock.monotonic()
        self._read_at = now
        try:
            return reader.read(deaths=MAX_DEATHS_COUNTED)
        except CommandError as error:
            shown = self._latest
            return replace(shown, trouble=error.lines[0], age_seconds=shown.age_seconds + now - before)


@contextlib.contextmanager
def _reading(source: FleetSource, first: ShownFleet, every: float, screen: FullScreen) -> Iterator[_Reads]:
    reads = _Reads(source, first, every, screen)
    try:
        yield reads
    finally:
        reads.end()


def _watch(source: FleetSource, first: ShownFleet, every: float, where: TargetOptions) -> None:
    view, shown, page, marks = TopView(), first, [""], _marks()
    with FullScreen(sys.stdout) as full, _reading(source, first, every, full) as reads:
        while True:
            if not view.is_paused:
                shown = reads.latest
            size = full.size
            lines = [line for text in page for line in wrapped(text, width=size.columns, hang=_indent(text) + 2)]
            full.draw(screen(shown, view, size, marks, lines), size)
            for key in full.keys(wait_seconds=every):
                view, action = pressed(view, key, shown.figures)
                pool = chosen(shown_pools(shown.figures, view), view)
                if action == "quit":
                    return
                if action == "explain" and pool is not None:
                    page, view = _explained(pool.pool, where), replace(view, page="why", scroll=0)
                elif action is not None and pool is not None:
                    view = replace(view, pool=pool.pool, message=_scale(source, pool, action, where))
                    reads.soon()


def _explained(pool: str, where: TargetOptions) -> list[str]:
    """Return what `towline why` prints about a pool."""
    from orchestrator.cli.commands.why import why

    printed = io.StringIO()
    options = ["--file", str(where["file"])] if where["file"] is not None else []
    options += ["--url", where["url"]] if where["url"] is not None else []
    options += ["--token-file", str(where["token_file"])] if where["token_file"] is not None else []
    try:
        with redirect_stdout(printed):
            why.main([pool, *options], standalone_mode=False)
    except (CommandError, click.ClickException) as error:
        return [*printed.getvalue().splitlines(), str(error)]
    return printed.getvalue().splitlines()


def _scale(source: FleetSource, pool: PoolFigures, action: Action, where: TargetOptions) -> str:
    """Set the pool's size by hand, or as its settings say; return what is so now in a sentence."""
    files = source.files
    if files is None:
        return _scale_at(source.target().url, pool, action, where)
    now, why_not = moment(), ""

    def change(before: Overrides) -> Overrides:
        nonlocal why_not
        before = before.in_force(now)
        if action == "reset":
            return Overrides(None, before.paused, before.finish_by)
        size = before.scale.workers if before.scale is not None else None
        workers, why_not = scaled_size(pool, step=1 if action == "grow" else -1, size=size)
        if why_not:
            return before
        return Overrides(ScaleOverride(workers, Expiry.after(SCALE_SECONDS, now)), before.paused, before.finish_by)

    try:
        in_force = files.change_overrides(pool.pool, change)
    except OSError as error:
        return f"can't write in {files.path}: {error.strerror}"
    return why_not or f"{pool.pool}: {'; '.join(describe_overrides(in_force, now)) or 'as its settings say'}"


def _scale_at(url: str, pool: PoolFigures, action: Action, where: TargetOptions) -> str:
    """Do the same at a supervisor elsewhere."""
    workers: int | None = None
    try:
        with supervisor_at(url, where["token_file"]) as supervisor:
            if action != "reset":
                known = mapping_of(supervisor.get("pools", pool.pool, "overrides")["orders"]).get("scale")
                size = known_count_in(mapping_of(known), "workers")
                workers, why_not = scaled_size(pool, step=1 if action == "grow" else -1, size=size)
                if why_not:
                    return why_not
            told = supervisor.post("pools", pool.pool, "scale", body={"workers": workers, "seconds": SCALE_SECONDS})
    except CommandError as error:
        return error.lines[0]
    return f"{pool.pool}: {'; '.join(map(str, list_in(told, 'sentences'))) or 'as its settings say'}"


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" "))


def _marks() -> Marks:
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return Marks(has_colours=wants_colour(), glyphs=BLOCKS if encoding.startswith("utf") else ASCII_BLOCKS)
