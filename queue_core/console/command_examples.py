"""The same as a page shows or does, as a command line, with curl and in Python. Pure; names are quoted for each."""

import json
import shlex
from collections.abc import Mapping

from queue_core.console.api import quoted
from queue_core.verbs.wire import Json

Examples = list[tuple[str, str]]
_OPTIONS = {"state": "--state", "tag": "--tag", "leases": "--leases", "younger": "--added-after"}
_OPTIONS |= {"older": "--added-before", "worker": "--worker", "error": "--error", "contains": "--contains"}


def curl(method: str, path: str, body: Json | None = None) -> str:
    """Return a call of the API with curl; its address and token are variables, as for every command."""
    words = ["curl", *(["-X", method] if method != "GET" else [])]
    data = "" if body is None else f" -H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}"
    return f'{" ".join(words)} -H "authorization: Bearer $TOWLINE_TOKEN" "$TOWLINE_URL"{shlex.quote(path)}{data}'


def towline(*words: str) -> str:
    """Return a command line."""
    return shlex.join(["towline", *words])


def python(queue: str, call: str) -> str:
    """Return a call of a queue in Python."""
    opened = 'open_queues(os.environ["TOWLINE_URL"], token=os.environ.get("TOWLINE_TOKEN"))'
    return f"import os\nfrom queue_core import *\nqueue = {opened}.queue({queue!r})\n{call}"


def task_examples(queue: str, name: str, state: str) -> Examples:
    """Return how to see a task otherwise, and how to change it as its state allows."""
    path = f"/v1/queues/{quoted(queue)}"
    examples = [
        ("its story", towline("why", f"{queue}/{name}")),
        ("curl", curl("POST", f"{path}/peek", {"names": [name], "payload_bytes": 65_536})),
        ("Python", python(queue, f"print(queue.peek(names=[{name!r}], payload_bytes=65536).tasks)")),
    ]
    if state == "dead":
        examples += [
            ("redrive", towline("redrive", queue, name)),
            ("redrive with curl", curl("POST", f"{path}/redrive", {"names": [name]})),
            ("redrive in Python", python(queue, f"print(queue.redrive([{name!r}]))")),
        ]
    return examples


def filter_examples(queue: str, wanted: Mapping[str, str], body: Json) -> Examples:
    """Return how to find the tasks of a filter otherwise."""
    options = [word for name, value in wanted.items() for word in (_OPTIONS[name], value)]
    return [
        ("command line", towline("search", queue, *options)),
        ("curl", curl("POST", f"/v1/queues/{quoted(queue)}/search", body)),
    ]
