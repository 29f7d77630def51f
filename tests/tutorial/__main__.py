"""`python3 -m tests.tutorial`: type the tutorial on a bare Debian 12, and print how long it took.

Exit code 1: a command or a screen is not as the page says, or a bound is missed. 69: a bare Debian can't be made here.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Final

from queue_core.process.wording import shown_seconds
from tests.docs.blocks import read_page
from tests.tutorial.bare_debian import ROOT, NoBareDebianError, bare_debian, build_wheel
from tests.tutorial.typist import PageFailedError, Typist, headings_of

PAGE: Final = ROOT / "docs" / "tutorial.md"
BOUNDS: Final = {
    "3. Start it": ("the first task is done", 60.0),
    "5. Kill it": ("the first kill is survived", 180.0),
    "7. Stop": ("the whole tutorial", 600.0),
}
"""What is reached at the end of a part, and within how many seconds of wall time."""
UNAVAILABLE: Final = 69


def main() -> int:
    """Run the command."""
    argparse.ArgumentParser(prog="python3 -m tests.tutorial", description=__doc__).parse_args()
    text = PAGE.read_text()
    reached = set()
    is_late = False
    with tempfile.TemporaryDirectory(prefix="towline-index-") as folder:
        try:
            build_wheel(Path(folder))
            with (
                bare_debian(index=Path(folder)) as debian,
                Typist(read_page(PAGE, text), debian.shell, debian.write) as typist,
            ):
                for progress in typist.work(headings_of(text)):
                    what, bound_seconds = BOUNDS.get(progress.heading, ("", 0.0))
                    reached.add(progress.heading)
                    line = f"{shown_seconds(progress.seconds):>8}  {progress.heading}"
                    if what:
                        line += f": {what} (bound {shown_seconds(bound_seconds)})"
                        is_late |= progress.seconds > bound_seconds
                    print(line, flush=True)
        except NoBareDebianError as error:
            print(f"error: {error}", file=sys.stderr)
            return UNAVAILABLE
        except PageFailedError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    missing = BOUNDS.keys() - reached
    for heading in missing:
        print(f"error: {PAGE.name} has no part `{heading}`", file=sys.stderr)
    return int(is_late or bool(missing))


if __name__ == "__main__":
    sys.exit(main())
