"""The counter's web half: POST /NAME adds a task with the counter's name as its tag, GET / shows the counts."""

import json
import sqlite3
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING
from wsgiref.simple_server import make_server

from google.appengine.api import taskqueue

from queue_core import connect_appengine

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

connect_appengine("http://127.0.0.1:7878")


def application(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
    """Add a click, or show the counts."""
    if environ["REQUEST_METHOD"] == "POST":
        name = environ["PATH_INFO"].strip("/")
        taskqueue.Queue("clicks").add(taskqueue.Task(payload="", method="PULL", tag=name))
        start_response("204 No Content", [])
        return []
    with sqlite3.connect("counters.db", timeout=30) as database:
        counts = dict(database.execute("SELECT name, count FROM counters ORDER BY name"))
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(counts).encode() + b"\n"]


if __name__ == "__main__":
    with make_server("127.0.0.1", int(sys.argv[1]), application) as server:
        print(f"The counts are at http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()
