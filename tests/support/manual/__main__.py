"""Builds the manual into the package: `python3 run.py docs`, or `python3 -m tests.support.manual`.

With a folder as its argument it leaves the site's files there instead, for a web server or to look at.
"""

import sys
from pathlib import Path

from queue_core.console.manual.archive import ARCHIVE
from tests.support.manual.archive import write_archive
from tests.support.manual.site import SiteError, build_site
from tests.support.manual.sources import ROOT


def main(arguments: list[str]) -> str:
    """Return an error, or nothing once the manual is built."""
    try:
        if arguments:
            folder = Path(arguments[0])
            if folder.exists():
                return f"{folder} exists already: name a folder that does not, or remove it"
            sources = build_site(folder)
            said = f"{len(sources.pages)} pages are in {folder}"
        else:
            size = write_archive()
            said = f"the manual is in {ARCHIVE.relative_to(ROOT)} ({size / 1024:.0f} KiB): a server shows it at /docs/"
    except SiteError as error:
        return f"the manual can't be built: {error}"
    sys.stdout.write(f"{said}\n")
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or None)
