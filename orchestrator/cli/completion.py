"""`towline completion SHELL`: print the script that enables Tab completion."""

from typing import Final

import click
from click.shell_completion import get_completion_class

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import json_option

VARIABLE: Final = "_TOWLINE_COMPLETE"


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
    """Print the completion script of a shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise CommandError(f"no completion for {shell}", code=exits.USAGE)
    from orchestrator.cli import command as whole

    try:
        click.echo(kind(whole(), {}, "towline", VARIABLE).source())
    except RuntimeError as error:
        raise CommandError(str(error), code=exits.UNAVAILABLE) from None
    return exits.OK
