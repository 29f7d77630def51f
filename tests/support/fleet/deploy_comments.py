"""The commands that comments of `deploy/` tell a reader to run."""

import re
from dataclasses import dataclass
from typing import Final

from tests.support.commands import ROOT

DEPLOY: Final = ROOT / "deploy"
PROGRAMS: Final = "towline|docker|systemctl|journalctl|promtool|python3|find|kubectl|curl|cp|psql"
# In backticks, or after a gap: then it goes on to the next gap, where an explanation begins.
_COMMAND: Final = re.compile(rf"(?:`((?:{PROGRAMS}) [^`]+)`|(?: {{2}}|: )((?:{PROGRAMS}) (?! ).*?)(?: {{3}}|$))")
_COMPOSE_EXEC: Final = re.compile(r"docker compose exec (?:-T )?\S+ ")


@dataclass(frozen=True, slots=True)
class TaughtCommand:
    """A command with the file that names it."""

    file: str
    text: str

    @property
    def inside(self) -> str:
        """The command as a container of compose executes it; "" for any other."""
        found = _COMPOSE_EXEC.match(self.text)
        return self.text[found.end() :] if found else ""

    @property
    def is_ours(self) -> bool:
        """Whether it is `towline`, also at the end of a pipe or in a container of compose."""
        return (self.inside or self.text.rpartition("| ")[2]).startswith("towline ")


def taught() -> list[TaughtCommand]:
    """Every command of a comment, in order."""
    found = []
    for path in sorted(DEPLOY.rglob("*")):
        if not path.is_file() or path.suffix in {".json", ".pyc"}:
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            comment = re.match(r"\s*#(.*)", line)
            for quoted, shown in _COMMAND.findall(comment[1]) if comment else ():
                found.append(TaughtCommand(str(path.relative_to(DEPLOY)), (quoted or shown).strip()))
    return found
