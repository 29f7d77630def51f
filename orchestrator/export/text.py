"""Values to YAML that no value can break out of, under comments that say how it is used."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import yaml


def header(lines: Sequence[str]) -> str:
    """Comments; a line break inside a line stays inside the comment."""
    return "".join(f"# {line}".rstrip() + "\n" for text in lines for line in (text.splitlines() or [""]))


# Readers of YAML 1.1 and 1.2 differ in what is a number (0o17, 12:30): what does not begin like a word is quoted.
_WORDS: Final = re.compile(r"[A-Za-z/]")


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are, where YAML can have them so; else quoted. Nothing refers to anything else."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML's
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if _WORDS.match(text) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def yaml_of(*documents: Mapping[str, object]) -> str:
    """YAML documents. Texts that another reader would take for something else are quoted."""
    return yaml.dump_all(
        documents,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=120,
        explicit_start=len(documents) > 1,
    )
