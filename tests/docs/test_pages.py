"""Every code block and command of README, the manual and the examples does what its page says.

CONTRIBUTING.md says how blocks are written; `tests/docs/test_rules.py` shows that one that fails is told.
"""

import pytest

from tests.docs.conftest import RunPage
from tests.support.commands import ROOT

UNTESTED = ("docs/adr",)
"""Decisions are never rewritten, so their examples are of their time."""


def manual() -> list[str]:
    """Return every page that is run."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    names = [str(path.relative_to(ROOT)) for path in sorted(found)]
    return [name for name in names if not name.startswith(UNTESTED)]


@pytest.mark.parametrize("name", [name for name in manual() if "```" in (ROOT / name).read_text()])
def test_a_page_does_what_it_says(name: str, run_page: RunPage) -> None:
    run_page((ROOT / name).read_text(), name)
