"""A counter's web half: a form that adds a task per click, tagged with the counter's name, and a page of the counts."""

import html
import sqlite3
import sys
from collections.abc import Callable, Iterable
from urllib.parse import parse_qs
from wsgiref.simple_server import make_server

from google.appengine.api import taskqueue, wrap_wsgi_app

DATABASE = sys.argv[1]


def application(environ: dict[str, object], start_response: Callable[..., object]) -> Iterable[bytes]:
    """GET shows the counts; POST asks for one to be raised."""
    if environ["REQUEST_METHOD"] == "POST":
        size = int(str(environ.get("CONTENT_LENGTH") or 0))
        form = parse_qs(environ["wsgi.input"].read(size).decode())  # type: ignore[attr-defined]
        key = form.get("key", [""])[0]
        if key:
            taskqueue.Queue("pullq").add(taskqueue.Task(payload="", method="PULL", tag=key))
        start_response("302 Found", [("Location", "/"), ("Content-Length", "0")])
        return [b""]
    with sqlite3.connect(DATABASE, timeout=30) as database:
        rows = database.execute("SELECT name, count FROM counters ORDER BY name").fetchall()
    page = "".join(f"<li>{html.escape(name)}: {count}</li>" for name, count in rows).encode()
    start_response("200 OK", [("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(page)))])
    return [page]


if __name__ == "__main__":
    with make_server("127.0.0.1", 0, wrap_wsgi_app(application)) as server:
        print(server.server_port, flush=True)  # noqa: T201
        server.serve_forever()
