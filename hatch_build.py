"""The README as an index shows it: links and pictures lead to the project's home, at the tag of the version.

In the repository they are relative. The home is `Repository` in `[project.urls]` of `pyproject.toml`, and nowhere else.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r'(?P<before>\]\(|\b(?:src|srcset|href)="|^\[[^\]\n]+\]:[ ]+)(?P<to>[^)"\s]+)', re.MULTILINE)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|#|/")
_PICTURES = {".gif", ".jpg", ".png", ".svg", ".webp"}


class PublishedReadme(MetadataHookInterface):
    """Gives the project its description."""

    def update(self, metadata: dict) -> None:  # type: ignore[type-arg]
        """Set `readme`, which `pyproject.toml` says is dynamic."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        shown = with_absolute_links(text, home=metadata["urls"]["Repository"], tag=f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": shown}


def with_absolute_links(text: str, *, home: str, tag: str) -> str:
    """Return Markdown whose relative links and pictures lead to a tag of a repository on GitHub."""

    def absolute(link: re.Match[str]) -> str:
        to = link["to"]
        if _ELSEWHERE.match(to):
            return link[0]
        path = to.partition("#")[0]
        kind = "raw" if Path(path).suffix in _PICTURES else "tree" if path.endswith("/") else "blob"
        return f"{link['before']}{home}/{kind}/{tag}/{to.removeprefix('./')}"

    return _LINK.sub(absolute, text)
