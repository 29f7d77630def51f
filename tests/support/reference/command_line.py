"""The page of the command line: every command with its arguments, options and examples, as its help has them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

import click

from orchestrator.cli import command
from queue_core.cli.group import Command, LazyGroup
from tests.support.reference.markdown import code, page, sentence, table

INTRODUCTION: Final = """\
Each command says this itself: `towline COMMAND --help`. `towline completion bash` prints Tab completion. [Exit
codes](exit-codes.md) are the same for all, and `--json` prints for programs what a terminal gets as sentences."""

COMMON: Final = ("--url", "--store", "--token-file", "--json", "--debug", "--file", "--help")
"""Options that mean the same wherever they are: told once."""
_BARE: Final = click.Context(click.Command(""))


def commands() -> Iterator[tuple[str, str, click.Command]]:
    """Yield each command's whole name, its section of the help, and the command; subcommands after their command."""
    root = command()
    context = click.Context(root, info_name="towline", **root.context_settings)
    for name in root.list_commands(context):
        found = root.get_command(context, name)
        assert found is not None
        section = root._entries[name].section
        yield name, section, found
        if isinstance(found, click.Group):
            inner = click.Context(found, info_name=name, parent=context)
            for below in found.list_commands(inner):
                subcommand = found.get_command(inner, below)
                assert subcommand is not None
                yield f"{name} {below}", section, subcommand


def command_line_page() -> str:
    """Return the page."""
    root = command()
    assert isinstance(root, LazyGroup)
    parts: list[str] = [INTRODUCTION, "## Options of most commands", _common()]
    section = ""
    for name, of_section, one in commands():
        if of_section != section:
            section = of_section
            parts.append(f"## {section}")
        parts.append(_command(name, one))
    return page("Command line", "the commands' help", *parts)


def _common() -> str:
    rows = []
    for name in COMMON:
        option = next(
            one for _, _, command in commands() for one in _options(command) if _is_common(one) and _name(one) == name
        )
        rows.append((code(_names(option)), _meaning(option)))
    return table(("option", "meaning"), rows)


@cache
def _usual() -> Mapping[str, str]:
    """Return what most commands mean by each common option."""
    found: dict[str, Counter[str]] = {name: Counter() for name in COMMON}
    for _, _, one in commands():
        for option in _options(one):
            if _name(option) in found:
                found[_name(option)][_meaning(option)] += 1
    return {name: counts.most_common(1)[0][0] for name, counts in found.items()}


def _name(option: click.Option) -> str:
    return max(option.opts, key=len)


def _is_common(option: click.Option) -> bool:
    return _usual().get(_name(option)) == _meaning(option)


def _command(name: str, one: click.Command) -> str:
    context = click.Context(one, info_name=f"towline {name}", **command().context_settings)
    usage = f"towline {name} {' '.join(one.collect_usage_pieces(context))}".strip()
    own = [option for option in _options(one) if not _is_common(option)]
    common = [code(_name(option)) for option in _options(one) if _is_common(option)]
    parts = [f"### towline {name}", f"```text\n{usage}\n```", _help(one)]
    if own:
        parts.append(table(("option", "meaning"), [(code(_names(option)), _meaning(option)) for option in own]))
    if common:
        parts.append(f"Also {', '.join(common)}." if own else f"Takes {', '.join(common)}.")
    if isinstance(one, Command) and one.examples:
        parts.append("```text\n" + "\n".join(f"$ {example}" for example in one.examples) + "\n```")
    return "\n\n".join(part for part in parts if part)


def _options(one: click.Command) -> list[click.Option]:
    context = click.Context(one, **command().context_settings)  # click remembers which names help has
    return [option for option in one.get_params(context) if isinstance(option, click.Option) and not option.hidden]


def _names(option: click.Option) -> str:
    names = ", ".join(option.opts + option.secondary_opts)
    return (
        names if option.is_flag or option.count else f"{names} {option.make_metavar(click.Context(click.Command('')))}"
    )


def _meaning(option: click.Option) -> str:
    record = option.get_help_record(click.Context(click.Command("")))
    text = record[1] if record else ""
    return (
        sentence(text.replace("  [", " [").replace("[", "\\[")) if not text.endswith("]") else text.replace("[", "\\[")
    )


def _help(one: click.Command) -> str:
    text = (one.help or "").partition("\f")[0]
    paragraphs = []
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.splitlines()
        if lines and lines[0].strip() == "\b":
            paragraphs.append("```text\n" + "\n".join(line.rstrip() for line in lines[1:]) + "\n```")
        else:
            paragraphs.append(" ".join(line.strip() for line in lines))
    return "\n\n".join(paragraphs)
