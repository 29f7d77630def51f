"""A page as a value: an address, a template, and the function that makes the calls it shows."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from queue_core.clock import Instant
from queue_core.console.api import quoted
from queue_core.console.call import PageCall
from queue_core.unit.verb import Verb, path_members

Load = Callable[[PageCall], Awaitable[Mapping[str, object]]]
Act = Callable[[PageCall, Mapping[str, str]], Awaitable[str]]
"""Do what a form asks for; return a sentence on what was done."""


Give = Callable[[PageCall], Awaitable[tuple[str, bytes]]]
"""Return the name of a file and what it contains."""


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """One page of the console.

    Args:
        path: its address below the console's.
        section: the entry of the menu that it belongs to.
        is_live: whether it follows what happens.
        needs: the path of the API without which there is nothing to show; "": none.
        max_form_bytes: size of a form whose fields the page works with, which changes nothing; 0: it takes none.
    """

    path: str
    title: str
    section: str
    template: str
    load: Load
    is_live: bool = True
    needs: str = ""
    max_form_bytes: int = 0


def act_of(kind: type[Verb[Any]]) -> Act:
    """Return what the form of a verb does whose arguments are all in the address (ADR 136)."""

    async def act(call: PageCall, _form: Mapping[str, str]) -> str:
        members = {name: call.path[name] for name in path_members(kind)}
        path = kind.path.format_map({name: quoted(value) for name, value in members.items()})
        verb, result = kind(**members), kind.result_of(await call.post(path))
        sentence = verb.sentence(result, Instant(round(call.now_seconds * 1e6)))
        return f"{sentence[0].upper()}{sentence[1:]}."

    return act
