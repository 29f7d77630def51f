"""`towline completion SHELL`, and what its script asks for at each Tab: commands, options and names of the server."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from orchestrator.cli import COMPLETE_VARIABLE
from orchestrator.cli.command_line.server_names import Kind, names_of
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import json_option

PROGRAM: Final = "towline"


@dataclass(frozen=True, slots=True)
class NamedPlaces:
    """The places of a command where a server's names are typed: arguments in order (None: no name), and options.

    A `tasks` place means those of the queue in the first argument. `flags` are options of its own without a value.
    """

    arguments: tuple[Kind | None, ...] = ()
    options: Mapping[str, Kind] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


_QUEUE: Final = NamedPlaces(("queues",))
_POOL: Final = NamedPlaces(options={"--pool": "pools"})
_TAGGED: Final[Mapping[str, Kind]] = {"--tag": "tags"}
_RETAGGED: Final[Mapping[str, Kind]] = {"--tag": "tags", "--retag": "tags"}
_NAMED: Final[Mapping[str, Kind]] = {"--tag": "tags", "--named": "tasks"}

NAMED_PLACES: Final[Mapping[str, NamedPlaces]] = {
    "add": NamedPlaces(("queues", None), _TAGGED, ("--lines", "--names")),
    "lease": NamedPlaces(("queues",), _TAGGED),
    "renew": NamedPlaces(("queues", None)),
    "release": NamedPlaces(("queues", None)),
    "delete": NamedPlaces(("queues", None), {"--named": "tasks"}),
    "peek": NamedPlaces(("queues",), _NAMED),
    "search": NamedPlaces(("queues",), _RETAGGED, ("--redrive", "--release", "--delete", "--dry-run")),
    "purge": NamedPlaces(("queues",), _TAGGED, ("--dead",)),
    "redrive": NamedPlaces(("queues",), _NAMED),
    "pause": NamedPlaces(("queues",), {"--pool": "pools"}),
    "resume": NamedPlaces(("queues",), {"--pool": "pools"}),
    "stats": NamedPlaces(("queues",), _TAGGED),
    "events": NamedPlaces(options={"--queue": "queues", "--task": "tasks"}),
    "export": NamedPlaces(options={"--queue": "queues"}),
    "work": NamedPlaces(options={"--queue": "queues", "--tag": "tags"}),
    "scale": NamedPlaces(("pools", None)),
    "workers": NamedPlaces(options={"--stack": "workers"}),
    "drain": NamedPlaces(("workers",), flags=("--undo",)),
    "kill": NamedPlaces(("workers",)),
    "replace": NamedPlaces(("pools",)),
    "pools": NamedPlaces(("pools",)),
    "logs": NamedPlaces(("pools and workers",), {"--task": "tasks"}),
    "why": NamedPlaces(("pools and tasks",)),
    "why-died": NamedPlaces(("dead workers",), {"--pool": "pools"}),
    "backtest": _POOL,
    "simulate": NamedPlaces(options={"--pool": "pools", "--queue": "queues"}),
}
"""By command. Kept here, and not at each option, so that a Tab needs to import no command."""


@command(
    "completion",
    examples=(
        'eval "$(towline completion bash)"        # in ~/.bashrc',
        'eval "$(towline completion zsh)"         # in ~/.zshrc',
        "towline completion fish > ~/.config/fish/completions/towline.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
def completion(shell: str, as_json: bool) -> int:  # noqa: ARG001, FBT001
    """Print the completion script of a shell: of commands, options, and names that the running server knows.

    Queues, pools, workers, tasks and tags are read at each Tab, from the server that the command line names, or
    TOWLINE_URL, or the settings file here. Without a server there are none, and nothing is said.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise CommandError(f"no completion for {shell}", code=exits.USAGE)
    from orchestrator.cli import command as whole

    try:
        click.echo(kind(whole(), {}, PROGRAM, COMPLETE_VARIABLE).source())
    except RuntimeError as error:
        raise CommandError(str(error), code=exits.UNAVAILABLE) from None
    return exits.OK


def complete(instruction: str, whole: Callable[[], click.Command]) -> bool:
    """Print what completes the words that a shell's script has put into the environment.

    Args:
        instruction: bash_complete, zsh_complete or fish_complete; anything else is left to click: False.
        whole: returns the root command, for what is no name.
    """
    shell, _, verb = instruction.partition("_")
    kind = get_completion_class(shell)
    if verb != "complete" or kind is None:
        return False
    shell_words = kind(whole(), {}, PROGRAM, COMPLETE_VARIABLE)
    words, incomplete = shell_words.get_completion_args()
    place = place_of(words, incomplete)
    if place is None:
        found = shell_words.get_completions(words, incomplete)
    else:
        found = [CompletionItem(name) for name in names_of(place, words, os.environ) if name.startswith(incomplete)]
    for item in found:
        click.echo(shell_words.format_completion(item))
    return True


def place_of(words: Sequence[str], incomplete: str) -> Kind | None:
    """Return what kind of name is typed after `words`; None for no name, or where only the command can tell."""
    places = NAMED_PLACES.get(words[0]) if words else None
    if places is None or incomplete.startswith("-"):
        return None
    rest = words[1:]
    if rest and rest[-1] in places.options:
        return places.options[rest[-1]]
    flags = FLAGS.union(places.flags)
    if rest and _takes_value(rest[-1], flags):
        return None
    before = ["", *rest]
    given = [word for at, word in enumerate(rest) if not word.startswith("-") and not _takes_value(before[at], flags)]
    if len(given) >= len(places.arguments):
        return None
    return places.arguments[len(given)]


def _takes_value(word: str, flags: Collection[str]) -> bool:
    """Return whether the next word is the value of this one, as far as that is known without the command."""
    return word.startswith("-") and "=" not in word and word not in flags


FLAGS: Final = frozenset(
    (
        *("--json", "--debug", "--untagged", "--yes", "--follow", "--force", "--reset", "--tags", "--group", "--full"),
        *("--uncounted", "--chart", "--resume", "--overwrite", "--"),
    )
)
"""Options without a value, which no command has with one."""
