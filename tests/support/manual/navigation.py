"""The manual's navigation: sections are folders, and a page's place is that in `docs/README.md`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

Navigation = list["Mapping[str, str | Navigation]"]

SECTIONS: Final = (("How-to", "how-to"), ("Reference", "reference"), ("Explanation", "explanation"))
LATER_SECTIONS: Final = (("From other systems", "from"), ("Examples", "examples"))
DECISIONS: Final = (("The queue", "adr/queue"), ("The fleet", "adr/fleet"))
GLOSSARY: Final = "reference/glossary.md"
ADR_INDEX: Final = "adr/index.md"

HOW_TO: Final[Mapping[str, str]] = {
    "Write handlers": (
        "handlers functions pipelines handover gpu-batches batches schedules periodic testing async fastapi django "
        "limits tenants"
    ),
    "Run a fleet": (
        "demo console watching logs deaths runbook daemon systemd deploys docker compose swarm keda kubernetes helm "
        "hosts cloud-run monitoring opentelemetry simulation"
    ),
    "Keep the store": "sqlite postgresql redis hosts backups moving",
    "Use Celery": "celery celery-pools celery-fleets",
    "Maintain Towline": "releasing",
}
"""Groups of how-to pages, by file name; a page that is in none is listed under `OTHER`, after them."""
OTHER: Final = "More"
REFERENCE_FIRST: Final = (
    "settings",
    "command-line",
    "python-api",
    "http-api",
    "events",
    "metrics",
    "errors",
    "exit-codes",
)
"""Pages of the reference that come before all others."""


def navigation(titles: Mapping[str, str], listing: str) -> Navigation:
    """Return the navigation of all pages.

    Args:
        titles: the title of each page of the site, by its path there.
        listing: the text of `docs/README.md`.
    """
    order = {path: place for place, path in enumerate(re.findall(r"\]\(([\w./-]+\.md)\)", listing))}
    left = sorted(titles, key=lambda path: (order.get(path, len(order)), path))

    def take(folder: str) -> Navigation:
        found = [path for path in left if path != GLOSSARY and PurePosixPath(path).parent.as_posix() == folder]
        found.sort(key=lambda path: not path.endswith("/index.md"))
        if folder == "reference":
            found.sort(key=_place_in_reference)
        for path in found:
            left.remove(path)
        return [{titles[path]: path} for path in found]

    made: Navigation = []
    for name, path in (("Home", "index.md"), ("Tutorial", "tutorial.md")):
        if path in left:
            left.remove(path)
            made.append({name: path})
    for name, folder in SECTIONS:
        pages = take(folder)
        made.append({name: _grouped(pages) if folder == "how-to" else pages})
    made += [{name: take(folder)} for name, folder in LATER_SECTIONS]
    decisions: Navigation = [{titles[ADR_INDEX]: ADR_INDEX}, *({name: take(folder)} for name, folder in DECISIONS)]
    left.remove(ADR_INDEX)
    left.remove(GLOSSARY)
    project: Navigation = [{titles[path]: path} for path in left]
    made += [{"Decisions": decisions}, {"Glossary": GLOSSARY}]
    if project:
        made.append({"Project": project})
    return [one for one in made if all(one.values())]


def pages_in(found: Navigation) -> list[str]:
    """Return the paths of a navigation, in order."""
    paths: list[str] = []
    for one in found:
        for value in one.values():
            paths += [value] if isinstance(value, str) else pages_in(value)
    return paths


def as_toml(found: Navigation | str) -> str:
    """Return a navigation as a value of TOML."""
    if isinstance(found, str):
        return _quoted(found)
    entries = (f"{{ {_quoted(name)} = {as_toml(value)} }}" for one in found for name, value in one.items())
    return f"[{', '.join(entries)}]"


def _place_in_reference(path: str) -> int:
    stem = PurePosixPath(path).stem
    return REFERENCE_FIRST.index(stem) if stem in REFERENCE_FIRST else len(REFERENCE_FIRST)


def _grouped(pages: Navigation) -> Navigation:
    groups: dict[str, Navigation] = {name: [] for name in (*HOW_TO, OTHER)}
    for one in pages:
        (path,) = one.values()
        stem = PurePosixPath(str(path)).stem
        groups[next((name for name, stems in HOW_TO.items() if stem in stems.split()), OTHER)].append(one)
    return [{name: found} for name, found in groups.items() if found]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def sections_of(found: Sequence[Mapping[str, str | Navigation]]) -> list[str]:
    """Return the names of the topmost entries."""
    return [name for one in found for name in one]
