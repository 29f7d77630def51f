"""All pages that are written from the program."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.reference.command_line import command_line_page
from tests.support.reference.errors import errors_page, exit_codes_page
from tests.support.reference.events import events_page
from tests.support.reference.http_api import http_api_page
from tests.support.reference.python_api import python_api_page
from tests.support.reference.settings import settings_page

FOLDER: Final = Path(__file__).resolve().parents[3] / "docs" / "reference"


def pages() -> Mapping[str, str]:
    """Return each page by the name of its file."""
    return {
        "command-line.md": command_line_page(),
        "errors.md": errors_page(),
        "events.md": events_page(),
        "exit-codes.md": exit_codes_page(),
        "http-api.md": http_api_page(),
        "python-api.md": python_api_page(),
        "settings.md": settings_page(),
    }
