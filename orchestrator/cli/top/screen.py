"""The lines of `towline top` for a size of terminal, from 40 columns and 10 lines on; without one, all of it. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import click

from orchestrator.cli.fleet_tables import POOL_HEADS, WORKER_HEADS, pool_row, worker_row
from orchestrator.cli.live_fleet import ShownFleet
from orchestrator.cli.top.view import KEYS, WORDS, TopView, chosen, shown_pools, shown_workers
from orchestrator.fleet.figures import DRAINED, FleetFigures, PoolFigures, WorkerFigures
from queue_core.cli.tables import Column, TableLayout, lay_out
from queue_core.cli.wrapping import BLOCKS, bar, columns_of, padded, shortened, wrapped
from queue_core.client.http.folded_decisions import folded, times_in_words
from queue_core.client.http.recent_deaths import describe_deaths
from queue_core.process.terminal import TerminalSize, clean
from queue_core.process.wording import counted, shown_clock, shown_seconds

BAR_COLUMNS: Final = 8
MAX_DECISIONS: Final = 5
MAX_CONCERNS: Final = 3
"""Lines on what is wrong with pools and in force, at most, where the terminal is low."""
ROOMY_LINES: Final = 16
"""Lines of a terminal from which on parts have a blank line between them."""
NARROW_HELP: Final = 60
"""Columns from which on the help has its keys in a column of their own."""
_MARK: Final = "> "
_STATE_STYLES: Final = {
    "busy": "green",
    "starting": "cyan",
    "finishing": "yellow",
    "killed": "red",
    "unresponsive": "red",
}
_STATE_COLUMN: Final = [head.title for head in WORKER_HEADS].index("STATE")

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Marks:
    """Colours, where a terminal has them, and the glyphs of bars."""

    has_colours: bool = False
    glyphs: str = BLOCKS

    def style(self, text: str, **styles: object) -> str:
        """Return `text` in a style, where there are colours."""
        return click.style(text, **styles) if self.has_colours else text  # type: ignore[arg-type]


def fleet_text(shown: ShownFleet, *, width: int | None, marks: Marks) -> list[str]:
    """Return the whole fleet as lines for a pipe, a file or a terminal without a cursor."""
    figures, view = shown.figures, TopView()
    pools, workers = _pool_table(figures.pools, width, marks), _worker_table(figures.all_workers, width, marks)
    notes = [line for text in (pools.note, workers.note) if text for line in wrapped(text, width=width)]
    return [
        *_head(shown, view, width, marks),
        "",
        *(pools.lines if figures.pools else ["no pools in the settings file"]),
        *_concerns(shown, figures.pools, width, marks),
        "",
        *(workers.lines if figures.all_workers else ["no workers now"]),
        "",
        *_decisions(shown, width, marks)[:MAX_DECISIONS],
        *notes,
    ]


def screen(shown: ShownFleet, view: TopView, size: TerminalSize, marks: Marks, page: Sequence[str] = ()) -> list[str]:
    """Return at most `size.lines` lines of at most `size.columns`.

    page: the text of the page `why`.
    """
    figures = shown.figures
    foot = _foot(view, size.columns, marks)
    if view.page != "fleet":
        text = page if view.page == "why" else _help(figures, size.columns, marks)
        return _cut([*_scrolled(text, view.scroll, size.lines - len(foot)), *foot], size)
    head = _head(shown, view, size.columns, marks)
    head = head if size.lines >= ROOMY_LINES else [head[0], *head[2:]]
    body = _body(shown, view, size, marks, room=size.lines - len(head) - len(foot))
    return _cut([*head, *body, *foot], size)


def _body(shown: ShownFleet, view: TopView, size: TerminalSize, marks: Marks, *, room: int) -> list[str]:
    """Return the tables in `room` lines: first the pools, then the workers, then what is wrong, then decisions."""
    figures = shown.figures
    pools, workers = shown_pools(figures, view), shown_workers(figures, view)
    gap = [""] if size.lines >= ROOMY_LINES else []
    concerns = _concerns(shown, pools, size.columns, marks)
    decisions = _decisions(shown, size.columns, marks)[:MAX_DECISIONS]
    has_deaths = bool(describe_deaths(shown.deaths, now_seconds=shown.shown_at))
    pool_lines, worker_lines = 1 + max(1, len(pools)), 1 + max(1, len(workers))
    rest = room - len(gap) * 2 - min(pool_lines, max(3, room // 2))
    worker_room = max(0, min(worker_lines, rest))
    worker_room = worker_room if worker_room >= 2 else 0  # a head alone says nothing
    pool_room = max(2, min(pool_lines, room - len(gap) * 2 - worker_room))
    spare = room - len(gap) * 2 - pool_room - worker_room
    concerns = concerns[: max(0, min(len(concerns) if spare >= len(concerns) else MAX_CONCERNS + has_deaths, spare))]
    spare -= len(concerns)
    decisions = decisions[: max(0, spare)]
    parts = [
        [*_pools(pools, view, size.columns, marks, room=pool_room), *concerns],
        _workers(workers, view, size.columns, marks, room=worker_room) if worker_room else [],
        decisions,
    ]
    lines: list[str] = []
    for part in parts:
        lines += [*(gap if part else []), *part]
    return lines + [""] * max(0, room - len(lines))


def _pools(pools: Sequence[PoolFigures], view: TopView, width: int, marks: Marks, *, room: int) -> list[str]:
    if not pools:
        return [_nothing("pool", view)]
    now = chosen(pools, view)
    place = next((number for number, pool in enumerate(pools) if pool is now), 0)
    shown, hidden = _window(pools, place, room - 1)
    layout = _pool_table(shown, width - len(_MARK), marks)
    lines = [" " * len(_MARK) + layout.head]
    for pool, row in zip(shown, layout.rows, strict=True):
        line = (_MARK if pool is now else " " * len(_MARK)) + row[0]
        lines.append(marks.style(padded(line, width), reverse=True) if pool is now else line)
    return [*lines, *([marks.style(f"  {hidden:,} more (up and down choose)", dim=True)] if hidden else [])]


def _workers(workers: Sequence[WorkerFigures], view: TopView, width: int, marks: Marks, *, room: int) -> list[str]:
    if not workers:
        return [_nothing("worker", view)]
    shown, hidden = _window(workers, min(view.scroll + room - 3, len(workers) - 1) if view.scroll else 0, room - 1)
    lines = _worker_table(shown, width, marks).lines
    return [*lines, *([marks.style(f"{hidden:,} more (page down scrolls)", dim=True)] if hidden else [])]


def _nothing(noun: str, view: TopView) -> str:
    return f"no {noun} with {view.name_part!r} in its name (escape shows all)" if view.name_part else f"no {noun}s now"


def _window(items: Sequence[Item], place: int, room: int) -> tuple[Sequence[Item], int]:
    """Return those of `items` around `place` that `room` lines show, and how many are left out.

    Where some are left out, one line is kept free to say so.
    """
    if len(items) <= room:
        return items, 0
    size = max(1, room - 1)
    begin = min(max(0, place - size + 1), len(items) - size)
    return items[begin : begin + size], len(items) - size


def _pool_table(pools: Sequence[PoolFigures], width: int | None, marks: Marks) -> TableLayout:
    heads = _one_line([*POOL_HEADS[:2], Column("OF MAX", leaves=1), *(_later(head) for head in POOL_HEADS[2:-1])])
    rows = []
    for pool in pools:
        name, workers, *others, _in_force = pool_row(pool)  # a sentence below the table
        most = pool.max_workers
        of_max = f"{bar(pool.workers, most, BAR_COLUMNS, glyphs=marks.glyphs)} {most}" if most else ""
        rows.append((name, workers, of_max, *others))
    paint = (lambda row, _column, text: marks.style(text, dim=True) if row < 0 else text) if marks.has_colours else None
    return lay_out(heads, rows, width=width, paint=paint)


def _worker_table(workers: Sequence[WorkerFigures], width: int | None, marks: Marks) -> TableLayout:
    def paint(row: int, column: int, text: str) -> str:
        if row < 0:
            return marks.style(text, dim=True)
        colour = _STATE_STYLES.get(workers[row].state) if column == _STATE_COLUMN else None
        return marks.style(text, fg=colour) if colour else text

    rows = [worker_row(worker) for worker in workers]
    return lay_out(_one_line(WORKER_HEADS), rows, width=width, paint=paint if marks.has_colours else None)


def _later(head: Column) -> Column:
    """Return a column that is left out after the bars."""
    return replace(head, leaves=head.leaves + 1 if head.leaves else 0)


def _one_line(heads: Iterable[Column]) -> list[Column]:
    """Return columns whose long texts are cut: rows of several lines would take the place of others."""
    return [replace(head, folds=False, cuts=head.cuts or head.folds) for head in heads]


def _head(shown: ShownFleet, view: TopView, width: int | None, marks: Marks) -> list[str]:
    figures = shown.figures
    clock = shown_clock(shown.shown_at, now_seconds=shown.shown_at)
    state = ("paused at " + clock) if view.is_paused else clock
    phase = (figures.phase or "starting") if shown.is_alive else "no supervisor"
    parts = ["towline", clean(figures.url), f"supervisor {clean(phase)}" if shown.is_alive else phase]
    # The URL goes first where there is no room for it.
    for kept in (parts, [parts[0], parts[2]], [parts[2]]):
        line = "  ".join(part for part in kept if part)
        if width is None or columns_of(line) + 2 + columns_of(state) <= width:
            break
    line = line if width is None else padded(shortened(line, max(1, width - len(state) - 2)), width - len(state) - 2)
    first = f"{marks.style(line, bold=True)}  {marks.style(state, fg='yellow') if view.is_paused else state}"
    texts = [text for text in (shown.age, _drained(shown), *shown.not_in_force) if text]
    warnings = [marks.style(line, fg="yellow") for text in texts for line in wrapped(text, width=width, hang=2)]
    return [first, _summary(figures, width), *warnings]


def _drained(shown: ShownFleet) -> str:
    return DRAINED if shown.is_drained else ""


def _summary(figures: FleetFigures, width: int | None) -> str:
    states: dict[str, int] = {}
    for worker in figures.workers:
        states[worker.state] = states.get(worker.state, 0) + 1
    ready, in_flight = sum(pool.ready for pool in figures.pools), sum(pool.in_flight for pool in figures.pools)
    oldest = max((pool.oldest_seconds for pool in figures.pools), default=0.0)
    workers = counted(len(figures.workers), "worker")
    if figures.unsupervised:
        workers += f" and {len(figures.unsupervised):,} unsupervised"
    every = f"{workers}: " + ", ".join(f"{count:,} {state}" for state, count in states.items()) if states else workers
    tasks = f"{ready:,} ready, {in_flight:,} in flight"
    waits = f", the oldest for {shown_seconds(oldest)}" if ready else ""
    line = tasks
    for line in (f"{every}; {tasks}{waits}", f"{workers}; {tasks}{waits}", f"{workers}; {tasks}", tasks):
        if width is None or columns_of(line) <= width:
            break
    return line


def _concerns(shown: ShownFleet, pools: Sequence[PoolFigures], width: int | None, marks: Marks) -> list[str]:
    """Return recent deaths, unserved tags, what is wrong with the pools, and the overrides in force, as sentences."""
    died = describe_deaths(shown.deaths, now_seconds=shown.shown_at)
    # One line: `towline workers` has the rest, and the other sentences keep their room.
    lines = [marks.style(_cut_at_word(clean(f"! {died}"), width), fg="yellow")] if died else []
    for text in replace(shown.figures, pools=tuple(pools)).sentences(notes="all"):
        lines += [marks.style(line, fg="yellow") for line in wrapped(clean(text), width=width, prefix="! ")]
    return lines


def _decisions(shown: ShownFleet, width: int | None, marks: Marks) -> list[str]:
    """Return a line for each of the newest decisions; a long one ends at a word, as `why` has it whole."""
    lines = []
    for one in folded(shown.decisions):
        at = one.get("at")
        when = shown_clock(at, now_seconds=shown.shown_at) + "  " if isinstance(at, int | float) else ""
        text = f"{when}{one.get('pool')}  {one.get('current')} -> {one.get('target')}: {one.get('why')}"
        text += times_in_words(one)
        lines.append(marks.style(_cut_at_word(clean(text), width), dim=True))
    return lines


def _cut_at_word(text: str, width: int | None) -> str:
    if width is None or columns_of(text) <= width:
        return text
    return shortened(wrapped(text, width=width - 2)[0] + " …", width)


def _foot(view: TopView, width: int, marks: Marks) -> list[str]:
    if view.is_typing:
        keys = [f"filter: {view.name_part}_", "enter keeps it", "escape drops it"]
    elif view.page != "fleet":
        keys = ["q leave", "escape back", "up, down scroll"]
    else:
        pause = "p go on" if view.is_paused else "p pause"
        keys = ["q leave", "? keys", "enter why", "+ - scale", pause, "/ filter", f"s by {view.worker_order}"]
        keys += [f"S by {view.pool_order}", "up, down choose"]
        keys = [f"/{view.name_part}", *keys] if view.name_part else keys
    line = keys[0]
    for key in keys[1:]:
        longer = f"{line}  {key}"
        line = longer if columns_of(longer) <= width else line
    message = wrapped(clean(view.message), width=width, hang=2) if view.message else []
    return [*message, marks.style(shortened(clean(line), width), dim=True)]


def _help(figures: FleetFigures, width: int, marks: Marks) -> list[str]:
    left_out = [
        table.note
        for table in (
            _pool_table(figures.pools, width - len(_MARK), marks),
            _worker_table(figures.all_workers, width, marks),
        )
        if table.note
    ]
    lines = [marks.style("Keys", bold=True)]
    size = max(len(name) for name, _ in (*KEYS, *WORDS)) + 4
    for title, words in (("", KEYS), ("Words", WORDS)):
        lines += ["", marks.style(title, bold=True)] if title else []
        for name, what in words:
            prefix = padded(f"  {name}", size) if width >= NARROW_HELP else f"{name}: "
            lines += wrapped(what, width=width, prefix=prefix, hang=size if width >= NARROW_HELP else 4)
    return [*lines, *([""] if left_out else []), *(line for text in left_out for line in wrapped(text, width=width))]


def _scrolled(lines: Sequence[str], scroll: int, room: int) -> list[str]:
    begin = min(scroll, max(0, len(lines) - room))
    shown = list(lines[begin : begin + room])
    return shown + [""] * (room - len(shown))


def _cut(lines: Sequence[str], size: TerminalSize) -> list[str]:
    """Return the lines that fit; of too many, the last one stays, as it has the keys.

    A line with a word that is longer than the terminal is cut, as it would go on in the line below.
    """
    kept = list(lines) if len(lines) <= size.lines else [*lines[: max(0, size.lines - 1)], lines[-1]]
    return [line if columns_of(line) <= size.columns else shortened(click.unstyle(line), size.columns) for line in kept]
