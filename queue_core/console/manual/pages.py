"""The manual at a listener's `/docs/`. It holds no secret: it is shown to everybody who reaches the listener."""

import asyncio
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from queue_core.console.guard import SITE_HEADERS
from queue_core.console.manual.archive import ManualFile, read_manual

CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; worker-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
"""Scripts and styles are files of the manual: the build moves out what the pages' templates have inline."""
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": CONTENT_POLICY,
    **SITE_HEADERS,
}
KEPT: Final = "private, max-age=3600"
"""How long a browser keeps a page without asking: an upgrade is seen within an hour."""

NOT_BUILT: Final = (
    "This copy of Towline has no manual: it runs from a checkout, where `python3 run.py docs` builds it. "
    "The same pages are Markdown files in the folder docs."
)
NO_SUCH_PAGE: Final = "The manual has no such page."
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Towline</title>
<link rel="stylesheet" href="{root}console/static/console.css">
</head>
<body>
<main id="main">
<div class="card narrow">
<h1>Manual</h1>
<p>{said}</p>
<p><a href="{root}docs/">To the manual's first page</a>, <a href="{root}console/">to the console</a></p>
</div>
</main>
</body>
</html>
"""


class ManualPages:
    """The manual of one listener. Lives in its loop."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._files: Mapping[str, ManualFile] | None = None

    async def response(self, request: Request) -> Response:
        """Return the answer to a request for a file below `/docs/`."""
        if request.method not in ("GET", "HEAD"):
            return Response(status_code=405, headers={**HEADERS, "allow": "GET, HEAD"})
        if self._files is None:
            self._files = await asyncio.to_thread(read_manual, self._archive)
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        name = path.removeprefix("/")
        if self._files is None:
            return _said(NOT_BUILT, path)
        found = _found(self._files, name)
        if found is None and f"{name}/index.html" in self._files:
            # Relative, so that it holds behind a prefix.
            return RedirectResponse(f"{name.rpartition('/')[2]}/", status_code=307, headers=dict(HEADERS))
        return _said(NO_SUCH_PAGE, path) if found is None else _file(found, request.headers)


def _found(files: Mapping[str, ManualFile], name: str) -> ManualFile | None:
    """Return the file of a name: as it is, of a folder its index, or a page named without `.html`."""
    if not name or name.endswith("/"):
        return files.get(f"{name}index.html")
    return files.get(name) or files.get(f"{name}.html")


def _file(found: ManualFile, of_request: Headers) -> Response:
    headers = {**HEADERS, "etag": found.etag, "cache-control": KEPT}
    known = [one.strip().removeprefix("W/") for one in of_request.get("if-none-match", "").split(",")]
    if found.etag in known or known == ["*"]:
        return Response(status_code=304, headers=headers)
    return Response(found.data, headers=headers, media_type=found.media_type)


def _said(said: str, path: str) -> Response:
    """Return a page with one sentence; `path`: the one below `/docs` that was asked for."""
    parts = escape(said).split("`")
    marked = "".join(f"<code>{one}</code>" if place % 2 else one for place, one in enumerate(parts))
    html = _PAGE.format(said=marked, root="../" * path.count("/"))
    return Response(html, 404, {**HEADERS, "cache-control": "no-store"}, "text/html; charset=utf-8")
