"""Pieces of pages: tables, cells, and the note that says how a page is made."""

import re
from collections.abc import Iterable, Sequence

MADE = "<!-- Written by `python -m tests.support.reference` from {source}: change it there. -->\n"


def page(title: str, source: str, *parts: str) -> str:
    """Return a page: its title, where it comes from, and its parts."""
    return "\n".join([f"# {title}\n", MADE.format(source=source), *(part.strip("\n") + "\n" for part in parts if part)])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a cell's lines become one."""
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for row in rows:
        cells = [cell(one) for _, one in zip(head, row, strict=True)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(text: str) -> str:
    """Return a text on one line, with its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return a text as code; one with backticks is set in two."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def plain(docstring: str) -> str:
    """Return the paragraphs of a docstring, each on one line, its indented code as blocks."""
    paragraphs = re.split(r"\n\s*\n", docstring.strip())
    return "\n\n".join(" ".join(one.split()) for one in paragraphs)


def sentence(text: str) -> str:
    """Return a text that ends with a full stop."""
    text = " ".join(text.split())
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]
