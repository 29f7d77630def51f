"""Templates: the words and figures of the command line, as HTML. What strangers wrote is text, never markup."""

import asyncio
import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from queue_core.config.celery_names import shown_queue
from queue_core.console.api import quoted
from queue_core.console.manual.addresses import manual_of_guard, manual_page
from queue_core.process.wording import (
    counted,
    iso_instant,
    shown_bytes,
    shown_clock,
    shown_rate,
    shown_seconds,
    shown_setting,
    shown_zone,
)

FOLDER: Final = Path(__file__).parent
MAX_SHOWN_CHARACTERS: Final = 65_536
"""Characters of one text on a page, at most."""
BLOCK: Final = 64
"""Characters of a text that are looked at in one go."""
SLICE_PIECES: Final = 400
"""Pieces of a page that are made in one go, about a millisecond: the server's loop has leases to grant in between."""
_LINE_ENDS: Final = "\n\t"
_NAMED_TEMPLATE: Final = re.compile(r"\"([a-z_]+\.html)\"")


def harmless(text: object) -> str:
    """Return a text with its control characters and changes of direction written out, as `\\x1b` or `\\u202e`."""
    whole = str(text)
    if len(whole) > MAX_SHOWN_CHARACTERS:
        whole = f"{whole[:MAX_SHOWN_CHARACTERS]} ... ({len(whole):,} characters)"
    if whole.isascii() and whole.isprintable():
        return whole
    return "".join(_harmless_block(whole[at : at + BLOCK]) for at in range(0, len(whole), BLOCK))


def _harmless_block(block: str) -> str:
    """Look at each character only where one may be harmful: a long text of letters costs little."""
    if block.replace("\n", "").replace("\t", "").isprintable():
        return block
    return "".join(map(_written_out, block))


def _written_out(character: str) -> str:
    if character in _LINE_ENDS or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@cache
def environment() -> Environment:
    """Return the templates' environment. Every value is escaped, and a name that is missing is an error."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    made.filters.update(
        seconds=shown_seconds,
        setting=shown_setting,
        bytes=shown_bytes,
        number=_number,
        rate=shown_rate,
        segment=quoted,
        text=harmless,
        iso=_iso,
    )
    made.globals.update(counted=counted, clock=shown_clock, zone=shown_zone, shown_queue=shown_queue)
    made.globals.update(manual_page=manual_page, manual_of_guard=manual_of_guard)
    return made


def _finalized(value: object) -> object:
    """Make texts harmless as they are written; markup is the templates' own."""
    if value is None:
        return ""
    return value if isinstance(value, int | float) or hasattr(value, "__html__") else harmless(value)


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else harmless(value)


def _iso(at: int) -> str:
    return iso_instant(at / 1e6)


def rendered(template: str, values: Mapping[str, object]) -> str:
    """Return a template filled with values."""
    return environment().get_template(template).render(values)


async def rendered_in_slices(template: str, values: Mapping[str, object]) -> str:
    """Return a template filled with values; all else in the loop goes on meanwhile."""
    if template not in _compiled():
        await asyncio.to_thread(compile_template, template)
    pieces: list[str] = []
    for piece in environment().get_template(template).generate(values):
        pieces.append(piece)
        if len(pieces) % SLICE_PIECES == 0:
            await asyncio.sleep(0)
    return "".join(pieces)


@cache
def _compiled() -> set[str]:
    """Return the names of the templates that were compiled, with all that they extend and import."""
    return set()


def compile_template(name: str) -> None:
    """Read and compile a template and those that it names: some 10 ms each, once, when somebody first looks at it."""
    made = environment()
    pending, found = [name], set[str]()
    while pending:
        one = pending.pop()
        if one in found or one in _compiled():
            continue
        found.add(one)
        made.get_template(one)
        assert made.loader is not None, "it has one"
        pending += _NAMED_TEMPLATE.findall(made.loader.get_source(made, one)[0])
    _compiled().update(found)
