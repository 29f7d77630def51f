"""Take a page apart: its fenced blocks, the comments that steer them, and the commands of a console block."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ENGINES: Final = frozenset({"postgresql", "redis", "rabbitmq", "docker", "nginx"})
"""Engines that a page may need."""
INTERRUPT: Final = frozenset({"Ctrl-C", "^C"})
"""Lines of a console block that end the last command in the background."""

_FENCE: Final = re.compile(r"(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)")
_STEERING: Final = re.compile(r"\s*<!-- run: (?P<order>.+?) *-->\s*")
_TITLE: Final = re.compile(r'title="([^"]+)"')
_EXITS: Final = re.compile(r"#[^'\"]*\bexits (\d+)\b")
_HEREDOC: Final = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_SLEEPS: Final = re.compile(r"(?:^|[;&|]\s*)sleep\b")
_IN_BACKGROUND: Final = re.compile(r"(?<![&>|])&\s*(?:#.*)?$")


class PageError(AssertionError):
    """A page that is not written as the runner reads it."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a console block, with the lines that are shown below it."""

    line: int
    text: str
    expected: tuple[str, ...] = ()
    code: int = 0
    is_background: bool = False

    @property
    def is_interrupt(self) -> bool:
        """Whether it is a key, which ends the last command in the background."""
        return self.text in INTERRUPT


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its language, the file that it is, and how it is run."""

    line: int
    language: str
    text: str
    title: str = ""
    appends: bool = False
    until: str = ""
    not_here: str = ""
    files: tuple[tuple[str, str], ...] = ()

    @property
    def commands(self) -> list[Command]:
        """The commands of a console block. Raises `PageError`."""
        return list(_commands(self.text.splitlines(), self.line + 1))


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the manual: its blocks from top to bottom, and the engines that it needs."""

    path: Path
    blocks: tuple[Block, ...]
    needs: frozenset[str] = frozenset()

    @property
    def shown(self) -> str:
        """The text of all its blocks."""
        return "".join(block.text for block in self.blocks)


@dataclass(slots=True)
class _Orders:
    """Orders of the comments before the next block."""

    until: str = ""
    not_here: str = ""
    files: list[tuple[str, str]] = field(default_factory=list)


def read_page(path: Path, text: str) -> Page:
    """Take a page apart. Raises `PageError`."""
    blocks: list[Block] = []
    needs: set[str] = set()
    orders = _Orders()
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if steering := _STEERING.fullmatch(line):
            _heed(steering["order"], orders, needs, number)
        elif fence := _FENCE.fullmatch(line):
            begin, number = number, _end_of(lines, number, fence)
            body = [inner.removeprefix(fence["indent"]) for inner in lines[begin : number - 1]]
            blocks.append(_block(begin, fence["info"], body, orders))
            orders = _Orders()
        elif "<!-- run:" in line:
            raise PageError(f"line {number}: a comment that steers a block stands on a line of its own: {line.strip()}")
        elif line.strip() and (orders.until or orders.not_here):
            raise PageError(f"line {number}: a comment that steers a block stands on the line before it")
    return Page(path, tuple(blocks), frozenset(needs))


def _end_of(lines: Sequence[str], begin: int, fence: re.Match[str]) -> int:
    """Return the number of the line that closes a fence."""
    for number in range(begin, len(lines)):
        if lines[number].strip() == fence["fence"]:
            return number + 1
    raise PageError(f"line {begin}: the block has no end")


def _heed(order: str, orders: _Orders, needs: set[str], line: int) -> None:
    verb, _, rest = order.partition(" ")
    if verb == "needs":
        found = set(re.split(r"[ ,]+", rest))
        if not found <= ENGINES:
            raise PageError(f"line {line}: a page may need {', '.join(sorted(ENGINES))}; not {rest}")
        needs |= found
    elif match := re.fullmatch(r'until "([^"]+)"', order):
        orders.until = match[1]
    elif match := re.fullmatch(r"not here, (\S.*)", order):
        orders.not_here = match[1]
    elif match := re.fullmatch(r"file (\S+) = (\S+)", order):
        orders.files.append((match[1], match[2]))
    else:
        raise PageError(f"line {line}: no order is `run: {order}`; these are: needs, until, not here, file")


def _block(line: int, info: str, body: Sequence[str], orders: _Orders) -> Block:
    language, _, attributes = info.strip().partition(" ")
    title = _TITLE.search(attributes)
    return Block(
        line=line,
        language=language,
        text="".join(f"{inner}\n" for inner in body),
        title=title[1] if title else "",
        appends="append" in _TITLE.sub("", attributes).split(),
        until=orders.until,
        not_here=orders.not_here,
        files=tuple(orders.files),
    )


def _commands(lines: Sequence[str], first: int) -> Iterator[Command]:
    """Yield the commands of a console block with what is shown below each."""
    number, begin, text = 0, first, ""
    shown: list[str] = []
    while number < len(lines):
        line = lines[number]
        if line.startswith("$ ") or line.strip() in INTERRUPT:
            if text:
                yield _command(begin, text, shown)
            begin, shown = first + number, []
            text, number = _whole(lines, number)
        elif not text and line.strip():
            raise PageError(f"line {first + number}: a console block begins with a command after `$ `: {line.strip()}")
        else:
            shown.append(line)
            number += 1
    if text:
        yield _command(begin, text, shown)


def _whole(lines: Sequence[str], number: int) -> tuple[str, int]:
    """Return a command with the lines that it goes on in, and the number of the line after it."""
    text = lines[number].removeprefix("$ ").strip()
    number += 1
    while number < len(lines) and _goes_on(text):
        text += f"\n{lines[number].removeprefix('> ')}"
        number += 1
    return text, number


def _goes_on(text: str) -> bool:
    if heredoc := _HEREDOC.search(text):
        return text.splitlines()[-1].strip() != heredoc[2]
    return text.endswith("\\") or _has_open_quote(text)


def _has_open_quote(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError as error:
        return "quotation" in str(error)
    return False


def _command(line: int, text: str, shown: Sequence[str]) -> Command:
    if _SLEEPS.search(text):
        raise PageError(
            f"line {line}: no page sleeps: wait for output by `run: until`, or for a command by ` &`: {text}"
        )
    exits = _EXITS.search(text)
    background = _IN_BACKGROUND.search(text)
    return Command(
        line=line,
        text=text[: background.start()].rstrip() if background else text,
        expected=tuple(shown),
        code=int(exits[1]) if exits else 0,
        is_background=background is not None,
    )
