"""Write `docs/man/` from the command line's own help: `python3 -m tests.support.man_pages`, when a command has changed.

`towline.1` lists the commands by section, `towline-add.1` is the page of `towline add`. The wheel brings them as
`share/man/man1`, where `man` finds them beside the environment's `bin`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import click

from orchestrator.cli import command
from queue_core.cli.exits import MEANINGS
from queue_core.cli.group import Command, CommandEntry, LazyGroup
from tests.support.reference.command_line import COMMON

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "docs" / "man"
Record = tuple[str, str]
"""An option, or an argument, and its description."""
RAW: Final = "\b"
"""The line before a paragraph of which each line begins a line of the page."""
_ESCAPES: Final = str.maketrans(
    {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti", '"': "\\(dq"}
)
FILES: Final = (("towline.yaml", "The settings: store, queues, pools. towline init writes one, with comments."),)
ENVIRONMENT: Final = (
    ("TOWLINE_URL", "The server or the store that commands talk to, where no option names one."),
    ("TOWLINE_TOKEN", "The access token for it."),
)


def pages() -> dict[str, str]:
    """Return every page by its file's name."""
    root = command()
    context = click.Context(root, info_name="towline", **root.context_settings)
    found: dict[str, tuple[click.Command, click.Context]] = {}
    for name in root.list_commands(context):
        one = root.get_command(context, name)
        assert one is not None
        found[name] = one, click.Context(one, info_name=name, parent=context)
    counts = Counter(record for one, inner in found.values() for record in records(one, inner))
    usual = {name: [record for record, _ in counts.most_common() if name_of(record) == name] for name in COMMON}
    common = [alike[0] for alike in usual.values() if alike]
    entries = entries_of(root)
    made = {"towline.1": overview(root, context, entries, common)}
    for name, (one, inner) in found.items():
        made[f"towline-{name}.1"] = page(one, inner, entries[name].summary, common)
    return made


def entries_of(group: LazyGroup) -> Mapping[str, CommandEntry]:
    """Return a group's commands with their sections and summaries."""
    return group._entries


def overview(
    root: LazyGroup, context: click.Context, entries: Mapping[str, CommandEntry], common: Sequence[Record]
) -> str:
    """Return the first page: what the program is for, its commands, files, variables and exit codes."""
    lines = [*head("towline", "pull queues whose workers look after themselves"), ".SH SYNOPSIS"]
    lines += [".B towline", r"[\fIoption\fR...] \fIcommand\fR [\fIargument\fR...]", ".SH DESCRIPTION"]
    lines += paragraphs(root.help or "")
    for section in dict.fromkeys(entry.section for entry in entries.values()):
        lines += [f".SH COMMANDS: {escaped(section.upper())}"]
        for name, entry in entries.items():
            if entry.section == section:
                lines += [".TP", f".BR towline\\-{escaped(name)} (1)", text(f"{capital(entry.summary)}.")]
    own = [record for record in records(root, context) if record not in common]
    lines += [".SH OPTIONS", *described(own), ".SH OPTIONS OF MOST COMMANDS", *described(common)]
    for title, rows in (("FILES", FILES), ("ENVIRONMENT", ENVIRONMENT)):
        lines += [f".SH {title}"]
        for name, what in rows:
            lines += [".TP", f".B {escaped(name)}", text(what)]
    lines += [".SH EXIT STATUS"]
    for code, meaning in MEANINGS:
        lines += [".TP", f".B {code}", text(f"{capital(meaning)}.")]
    return "\n".join(lines) + "\n"


def page(found: click.Command, context: click.Context, summary: str, common: Sequence[Record]) -> str:
    """Return the page of one command."""
    name = f"towline-{context.info_name}"
    usage = " ".join(found.collect_usage_pieces(context))
    lines = [*head(name, summary), ".SH SYNOPSIS"]
    lines += [f".B towline {escaped(str(context.info_name))}", text(usage), ".SH DESCRIPTION"]
    lines += paragraphs(found.help or "")
    lines += [".SH OPTIONS", *options(found, context, common)]
    if isinstance(found, click.Group):
        lines += [".SH COMMANDS"]
        for one in found.list_commands(context):
            below = found.get_command(context, one)
            assert below is not None
            inner = click.Context(below, info_name=one, parent=context)
            lines += [f".SS {escaped(inner.command_path)}", text(" ".join(below.collect_usage_pieces(inner)))]
            lines += [
                ".PP",
                *paragraphs(below.help or ""),
                *options(below, inner, common),
                *examples(below, title=".PP"),
            ]
    lines += examples(found, title=".SH EXAMPLES")
    lines += [".SH SEE ALSO", ".BR towline (1),", "which has the options of most commands, and the exit codes of all."]
    return "\n".join(lines) + "\n"


def head(name: str, summary: str) -> list[str]:
    """Return the title line and the section NAME."""
    title = f'.TH "{escaped(name.upper())}" "1" "" "Towline {version("towline")}" "Towline manual"'
    return [title, ".nh", ".ad l", ".SH NAME", f"{escaped(name)} \\- {escaped(summary)}"]


def options(found: click.Command, context: click.Context, common: Sequence[Record]) -> Iterator[str]:
    """Return the command's own options with their descriptions, and the names of those that most commands have."""
    given = records(found, context)
    yield from described([record for record in given if record not in common])
    also = [name_of(record) for record in given if record in common]
    if also:
        yield from (".PP", text(f"As most commands: {', '.join(also)}."))


def records(found: click.Command, context: click.Context) -> list[Record]:
    """Return the options as `--help` has them, and the arguments that it says something of."""
    made = []
    for parameter in found.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1]:
            # click remembers the names of the help option from the first context that asked for it.
            term = ", ".join(context.help_option_names) if "--help" in parameter.opts else record[0]
            made.append((term, " ".join(record[1].split())))
    return made


def name_of(record: Record) -> str:
    """Return the long name of an option: `--file` of `-f, --file PATH`."""
    return next((word.rstrip(",") for word in record[0].split() if word.startswith("--")), record[0])


def described(given: Sequence[Record]) -> Iterator[str]:
    """Return each option with its description."""
    for term, what in given:
        yield from (".TP", f".B {escaped(term)}", text(what))


def examples(found: click.Command, *, title: str) -> list[str]:
    """Return the examples as lines that are not filled; none without examples."""
    given: Sequence[str] = found.examples if isinstance(found, Command) else ()
    return [title, ".nf", *(text(one) for one in given), ".fi"] if given else []


def paragraphs(help_text: str) -> Iterator[str]:
    """Return the paragraphs of a help text; one whose first line is `RAW` keeps its lines."""
    for place, paragraph in enumerate(help_text.strip("\n").split("\n\n")):
        if place:
            yield ".PP"
        lines = paragraph.splitlines()
        if lines and lines[0].strip() == RAW:
            yield from (".nf", *(text(line) for line in lines[1:]), ".fi")
        else:
            yield text(" ".join(line.strip() for line in lines))


def text(line: str) -> str:
    """Return a line of text that troff takes for nothing else: a dot or a quote at its beginning is no request."""
    made = escaped(line)
    return f"\\&{made}" if made.startswith((".", "'")) else made


def escaped(word: str) -> str:
    """Return the text with what means something to troff, or prints as another character, written out."""
    return re.sub(r"[^\x20-\x7e]", lambda one: f"\\[u{ord(one[0]):04X}]", word.translate(_ESCAPES))


def capital(summary: str) -> str:
    """Return the summary as a sentence begins."""
    return summary[:1].upper() + summary[1:]


def main() -> None:
    """Write the pages, and remove those of commands that are gone."""
    made = pages()
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.1"):
        if old.name not in made:
            old.unlink()
    for name, content in made.items():
        (FOLDER / name).write_text(content)


if __name__ == "__main__":
    main()
