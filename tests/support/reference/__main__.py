"""Writes the pages of `docs/reference` that come from the program: `python -m tests.support.reference`."""

import sys

from tests.support.reference.pages import FOLDER, pages

if __name__ == "__main__":
    for name, text in pages().items():
        path = FOLDER / name
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)
            sys.stdout.write(f"{path.name} is new\n")
