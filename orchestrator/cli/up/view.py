"""Choose where `towline up` and `towline supervise` tell what happens: sentences on a terminal, JSON elsewhere."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.base import events
from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.cli.up.header import header
from orchestrator.cli.up.output import MAX_LOOK_BYTES, JsonOutput, UpScreen, shown, with_pools
from orchestrator.cli.up.restarted_tasks import TaskLookup
from orchestrator.cli.worker_lines import LinePrinter
from orchestrator.settings_file import Project, state_of
from orchestrator.supervisor.output import FleetOutput, OutputFollower
from queue_core.cli.event_lines import LineLayout
from queue_core.cli.failure import failures_as_json
from queue_core.cli.worker_events import EventReader
from queue_core.client.connect import open_queues
from queue_core.client.http.caller import Retries
from queue_core.client.queue import Queues
from queue_core.errors import QueueError
from queue_core.log import get_logger
from queue_core.process import logs
from queue_core.process.terminal import allows_colours
from queue_core.stats import QueueStats

TIMEOUT_SECONDS = 2.0
"""How long a question to the queue may take."""


@dataclass(slots=True)
class UpView:
    """The view of one run."""

    project: Project
    screen: UpScreen | None
    tells_events: bool
    url: str = ""
    token: str | None = None

    def begin(
        self,
        url: str,
        *,
        token: str | None,
        title: Sequence[object],
        handlers: Mapping[str, int] | None = None,
        console: str = "",
    ) -> None:
        """Show the header, on a terminal; `url` and `token` are where the queues are, `console` tells of the pages."""
        self.url, self.token = url, token
        if self.screen is None or not self.tells_events:
            return
        where = self.screen.where
        output = f"Workers' output appears here and in {where}" if self.screen.shows_output else f"Output is in {where}"
        names = tuple(map(str, title))
        width = self.screen.columns()
        lines = header(self.project.pools, title=names, output=output, width=width, handlers=handlers, console=console)
        self.screen.begin(lines)

    @contextmanager
    def counted(self, *, store: str) -> Iterator[None]:
        """Log at the end of the block what was done in it, and what is left in the pools' queues."""
        before = self._stats()
        yield
        after = self._stats()
        if before is None or after is None:
            return
        get_logger().info(
            events.WORK_COUNTED,
            done=sum(one.deleted_total for one in after) - sum(one.deleted_total for one in before),
            dead=sum(one.dead for one in after),
            waiting=sum(one.pending for one in after),
            store=store,
        )

    def connect(self) -> Queues:
        """Open a client of the queues, for short questions."""
        return open_queues(self.url, token=self.token, retries=Retries(tries=1), timeout_seconds=TIMEOUT_SECONDS)

    def _stats(self) -> list[QueueStats] | None:
        """Return the counts of the pools' queues; None where they can't be had now."""
        try:
            queues = self.connect()
            try:
                pools = [spec for spec in self.project.pools.values() if spec.source is None]
                names = dict.fromkeys(name for spec in pools for name in spec.queues)
                return [queues.queue(name).stats() for name in names]
            finally:
                queues.close()
        except QueueError:
            return None


@contextmanager
def events_shown(
    project: Project,
    log_level: logs.Level,
    *,
    shows_output: bool | None,
    as_json: bool,
) -> Iterator[UpView]:
    """Tell during the block what is logged, and what workers write.

    On a terminal all of it comes as sentences. A stream that is none gets one JSON object a line: events on stderr, and
    workers' output on stdout where `shows_output` asks for it. Failures of the command are told in the same form.
    """
    err_is_terminal, out_is_terminal = (stream.isatty() and not as_json for stream in (sys.stderr, sys.stdout))
    wants_output = out_is_terminal if shows_output is None else shows_output
    screen: UpScreen | None = None
    if err_is_terminal or (out_is_terminal and wants_output):
        screen = _screen(project, log_level, to_stderr=err_is_terminal, shows_output=out_is_terminal and wants_output)
    views: list[UpScreen | JsonOutput] = [] if screen is None else [screen]
    if wants_output and not out_is_terminal:
        views.append(JsonOutput(LinePrinter(as_json=True)))
    sink = screen.take if screen is not None and err_is_terminal else None
    logs.configure(level=log_level, shape="json" if as_json else "auto", sink=sink)
    view = UpView(project, screen, tells_events=err_is_terminal)
    output = FleetOutput(state_of(project))
    if screen is not None:
        screen.lookup = TaskLookup(view.connect)
    with (
        failures_as_json(is_wanted=not err_is_terminal),
        shown(lambda: OutputFollower(output, output.workers, max_bytes=MAX_LOOK_BYTES), views),
    ):
        yield view


def _screen(project: Project, log_level: logs.Level, *, to_stderr: bool, shows_output: bool) -> UpScreen:
    stream = sys.stderr if to_stderr else sys.stdout
    queues = {spec.name: spec for spec in project.queue_file.specs()}
    folder = state_of(project).path / "workers"
    return UpScreen(
        stream,
        EventReader(queues, log_level, project.directory.resolve()),
        with_pools(LineLayout(has_colours=allows_colours()), tuple(project.pools)),
        SystemMonotonicClock(),
        shows_output=shows_output,
        where=_short(folder),
    )


def _short(folder: Path) -> str:
    """Return a folder's path from the working directory on, where it is in it."""
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)
