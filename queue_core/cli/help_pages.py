"""Help pages in the width of the terminal: no word is broken, and an example that has no room can still be copied."""

from collections.abc import Iterable, Sequence
from typing import Final

import click

from queue_core.cli.output import HANG, terminal_width
from queue_core.cli.wrapping import columns_of, wrapped

MAX_WIDTH: Final = 110
MAX_TERM: Final = 30
"""Columns of an option or command beside its description; a longer one has a line of its own."""
RAW: Final = "\b"
"""The line before a paragraph of which each line begins a line of the page."""


class HelpPage(click.HelpFormatter):
    """A page that breaks lines at spaces only: click breaks long words as well, and others at their hyphens."""

    def __init__(self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None) -> None:
        here = terminal_width()
        super().__init__(indent_increment, width or (here and min(here, max_width or MAX_WIDTH)), max_width)

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write how a command is called."""
        self._write(args, prefix=f"{prefix or 'Usage: '}{prog} ")

    def write_text(self, text: str) -> None:
        """Write paragraphs."""
        indent = " " * self.current_indent
        for place, paragraph in enumerate(text.expandtabs().strip("\n").split("\n\n")):
            self.write("\n" if place else "")
            lines = paragraph.splitlines()
            if lines and lines[0].strip() == RAW:
                for line in lines[1:]:
                    begin = indent + " " * (len(line) - len(line.lstrip()))
                    self._write(line.strip(), prefix=begin, hang=len(begin) + HANG)
            else:
                self._write(" ".join(line.strip() for line in lines), prefix=indent)

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = MAX_TERM, col_spacing: int = 2) -> None:
        """Write terms with their descriptions beside them."""
        known, indent = list(rows), " " * self.current_indent
        most = min(col_max, self.width * 3 // 8)
        column = min(max((columns_of(term) for term, _ in known), default=0), most)
        hang = len(indent) + column + col_spacing
        for term, text in known:
            if text and columns_of(term) <= column:
                self._write(text, prefix=f"{indent}{term:<{column}}{' ' * col_spacing}", hang=hang)
                continue
            self._write(term, prefix=indent)
            if text:
                self._write(text, prefix=" " * hang, hang=hang)

    def write_examples(self, examples: Sequence[str]) -> None:
        """Write command lines; one that a terminal has no room for goes on after a backslash."""
        indent = " " * self.current_indent
        width = None if terminal_width() is None else self.width - len(" \\")
        for example in examples:
            lines = wrapped(example, width=width, prefix=indent, hang=len(indent) + 4)
            self.write(" \\\n".join(lines) + "\n")

    def _write(self, text: str, *, prefix: str, hang: int | None = None) -> None:
        self.write("\n".join(wrapped(text, width=self.width, prefix=prefix, hang=hang)) + "\n")


class HelpContext(click.Context):
    """A context of which the help pages are `HelpPage`."""

    formatter_class = HelpPage
