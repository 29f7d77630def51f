"""Tables for people at any width of terminal: long texts fold, then the least important columns are left out. Pure.

Give rows of texts or numbers to `lay_out`, or to `output.print_table`, which prints them for the terminal at hand:

    heads = columns("POOL", ">WORKERS", ">READY", "RULE", "WHY", least=("RULE",), folds=("WHY",))
    print_table(heads, [("resize", "2/8", 12, "deadline", "12 tasks wait ...")], empty="no pools")
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from queue_core.cli.wrapping import Align, columns_of, padded, shortened, wrapped
from queue_core.process.terminal import clean

GAP: Final = "  "
MIN_FOLDED: Final = 16
"""A text that folds or is cut has this many columns at least; where there are fewer, another column is left out."""
MIN_NAME: Final = 8
"""The first column is cut to this many columns before one that is kept is left out after all."""

Paint = Callable[[int, int, str], str]
"""Colours a cell: called with its row (-1: the heads), its column in `heads`, and its padded text."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        leaves: its place in the order in which columns are left out: 1 is the first to go; 0: it stays.
        folds: whether its texts are broken at words into several lines where the terminal is narrow.
        cuts: whether its texts are cut in the middle there, as names are.
    """

    title: str
    align: Align = "left"
    leaves: int = 0
    folds: bool = False
    cuts: bool = False


def columns(
    *titles: str,
    least: Sequence[str] = (),
    keeps: Sequence[str] = (),
    folds: Sequence[str] = (),
    cuts: Sequence[str] = (),
) -> list[Column]:
    """Return columns by their titles; one that begins with `>` is aligned to the right.

    Args:
        least: those that a narrow terminal loses first, the least important one first; then the others go, from the
            right to the left.
        keeps: those that stay, as the first column does.
        folds: those whose texts are broken at words into several lines before any column goes.
        cuts: those whose texts are cut in the middle before any column goes.

    The titles in these are given without `>`.
    """
    names = [title.removeprefix(">") for title in titles]
    wrong = [name for name in (*least, *keeps, *folds, *cuts) if name not in names]
    if wrong:
        raise ValueError(f"{wrong[0]}: no such column; there are {', '.join(names)}")
    others = [name for name in reversed(names[1:]) if name not in (*least, *keeps)]
    order = {name: place for place, name in enumerate([*least, *others], start=1)}
    return [
        Column(name, "right" if title.startswith(">") else "left", order.get(name, 0), name in folds, name in cuts)
        for name, title in zip(names, titles, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class TableLayout:
    """A table as lines: `head`, and for each row one line or, where a text folds, several.

    `left_out` has the titles of columns that the width had no room for; from `full_width` columns on there is room for
    all, although texts that fold or are cut may take more.
    """

    head: str
    rows: tuple[tuple[str, ...], ...]
    left_out: tuple[str, ...]
    full_width: int

    @property
    def lines(self) -> list[str]:
        """All lines, the head first."""
        return [self.head, *(line for row in self.rows for line in row)]

    @property
    def note(self) -> str:
        """A sentence that names what was left out, and where it is; "" when nothing was."""
        if not self.left_out:
            return ""
        names = ", ".join(self.left_out)
        return f"no room for {names}: --json has all, or a terminal of {self.full_width} columns"


def lay_out(
    heads: Sequence[Column], rows: Sequence[Sequence[object]], *, width: int | None, paint: Paint | None = None
) -> TableLayout:
    """Lay out a table in `width` columns; None, as for a pipe: nothing folds, and no column is left out.

    Where all is too wide, first columns without any text go, then texts fold or are cut, then columns go in their order
    (see `Column`); the first column is cut in the middle when only those that stay are left. A cell is made of None
    ("-"), a boolean ("yes"), a number (thousands are separated) or text, of which control characters are escaped.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    widest = [
        max([columns_of(head.title), *(columns_of(row[index]) for row in cells)]) for index, head in enumerate(heads)
    ]
    every = list(range(len(heads)))
    filled = [index for index in every if index == 0 or any(row[index] for row in cells)]
    full_width = _total(_least(heads[index], widest[index]) for index in filled)
    if width is None or _total(widest) <= width:
        return _laid_out(heads, cells, dict(zip(every, widest, strict=True)), paint, full_width)
    widths = _fitted(heads, {index: widest[index] for index in filled}, width)
    left_out = tuple(heads[index].title for index in filled if index not in widths and heads[index].title)
    return replace(_laid_out(heads, cells, widths, paint, full_width), left_out=left_out)


def _fitted(heads: Sequence[Column], widest: dict[int, int], width: int) -> dict[int, int]:
    """Return the widths of the columns that stay."""
    left = dict(widest)
    while True:
        least = {index: _least(heads[index], left[index]) for index in left}
        if _total(least.values()) <= width:
            return _shared(least, left, width)
        leaving = [index for index in left if heads[index].leaves]
        if leaving:
            del left[min(leaving, key=lambda index: heads[index].leaves)]
            continue
        others = _total([0, *(size for index, size in least.items() if index)])
        if width - others >= MIN_NAME or len(left) == 1:
            return {**least, 0: max(1, width - others) if len(left) > 1 else width}
        del left[max(left)]


def _least(head: Column, widest: int) -> int:
    return min(widest, max(MIN_FOLDED, columns_of(head.title))) if head.folds or head.cuts else widest


def _shared(least: dict[int, int], widest: dict[int, int], width: int) -> dict[int, int]:
    """Return the widths with what is left of `width` given to texts that fold or are cut, the shortest first."""
    widths = dict(least)
    room = width - _total(widths.values())
    folding = sorted((index for index in least if least[index] < widest[index]), key=lambda index: widest[index])
    for place, index in enumerate(folding):
        more = min(widest[index] - widths[index], room // (len(folding) - place))
        widths[index] += more
        room -= more
    return widths


def _laid_out(
    heads: Sequence[Column],
    cells: Sequence[Sequence[str]],
    widths: dict[int, int],
    paint: Paint | None,
    full_width: int,
) -> TableLayout:
    def line(row: int, parts: dict[int, str]) -> str:
        last = max((index for index in parts if parts[index]), default=-1)
        shown = []
        for index, width in widths.items():
            if index > last:
                break
            text = padded(parts[index], width, heads[index].align)
            text = text.rstrip() if index == last else text
            shown.append(paint(row, index, text) if paint is not None else text)
        return GAP.join(shown)

    def folded(row: Sequence[str]) -> Iterator[dict[int, str]]:
        parts = {index: _in_lines(heads[index], row[index], widths[index]) for index in widths}
        for number in range(max(map(len, parts.values()), default=1)):
            yield {index: lines[number] if number < len(lines) else "" for index, lines in parts.items()}

    titles = {index: shortened(heads[index].title, widths[index]) for index in widths}
    rows = tuple(tuple(line(number, part) for part in folded(row)) for number, row in enumerate(cells))
    return TableLayout(line(-1, titles), rows, (), full_width)


def _in_lines(head: Column, text: str, width: int) -> list[str]:
    if columns_of(text) <= width:
        return [text]
    if not head.folds:
        return [shortened(text, width)]
    return [shortened(line, width) for line in wrapped(text, width=width, hang=0)]


def _total(widths: Iterable[int]) -> int:
    sizes = list(widths)
    return sum(sizes) + len(GAP) * max(0, len(sizes) - 1)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else clean(str(value))
