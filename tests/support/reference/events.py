"""The page of events: the name of everything that is logged or streamed, with the sentence that its constant has."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from queue_core.events import QueueEvent
from tests.support.reference.markdown import code, page, table

ROOT: Final = Path(__file__).resolve().parents[3]

SECTIONS: Final = (
    ("A task's life", ("queue_core/events.py",)),
    (
        "The server",
        (
            "queue_core/server/base/events.py",
            "queue_core/cli/serving.py",
            "queue_core/cli/commands/serve.py",
            "queue_core/console/app.py",
            "queue_core/process/logs.py",
        ),
    ),
    ("Workers", ("queue_core/worker/events.py",)),
    ("The supervisor", ("orchestrator/base/events.py",)),
    (
        "Stores across a network",
        (
            "queue_core/stores/redis/client/handshake.py",
            "queue_core/stores/postgres/notify/listener.py",
            "queue_core/stores/postgres/notify/sender.py",
            "queue_core/stores/postgres/maintenance.py",
            "queue_core/stores/postgres/schema.py",
            "queue_core/stores/postgres/floors.py",
        ),
    ),
    ("Celery's transport", ("queue_core/celery/transport/events.py", "queue_core/celery/mailboxes/network.py")),
)
NAME: Final = re.compile(r"[a-z_]+\.[a-z_]+")
NO_EVENTS: Final = frozenset({"towline.yaml"})
LEVELS: Final = ("debug", "info", "warning", "error", "exception")

INTRODUCTION: Final = """\
An event has a name, a dotted noun and a participle, and fields; no event has a payload or a token. On a terminal
`towline up` tells those that a person has to know as sentences; everything else is in the log: JSON lines on stderr
of a program that no terminal reads, and in the file of `log`, if set. `level` is the least important one at which an
event is logged; `lifecycle: batch` or `off` keeps those of a task's life short.

```console
$ towline events --help
```"""

STREAM: Final = """\
These are also at `GET /v1/events`, and as server-sent events with `?follow=true` ([HTTP API](http-api.md)): `event`
is the name, `id` a number that `Last-Event-ID` continues from, `data` the fields below. `towline events --follow`
prints them.

Fields: {fields}. A field that does not apply is left out. `lease_number` counts from 1; `waited_seconds` is from the
eta to the lease, `held_seconds` from the lease to its end."""


def events_page() -> str:
    """Return the page."""
    levels = _levels()
    parts = [INTRODUCTION]
    for title, modules in SECTIONS:
        rows: dict[str, tuple[str, str, str]] = {}
        for module in modules:
            for name, event, text in events_of(ROOT / module):
                rows.setdefault(event, (code(event), _least(levels.get(name, set())), text))
        parts.append(f"## {title}")
        if title == SECTIONS[0][0]:
            fields = ", ".join(code(one.name) for one in dataclasses.fields(QueueEvent))
            parts.append(STREAM.format(fields=fields))
            parts.append(table(("event", "meaning"), [(name, text) for name, _, text in rows.values()]))
        else:
            parts.append(table(("event", "level", "meaning"), rows.values()))
    return page("Events", "the constants that name them", *parts)


def events_of(module: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the constants of a module that name events: name, event and sentence ("" for none)."""
    body = ast.parse(module.read_text()).body
    for place, node in enumerate(body):
        target = (
            node.targets[0]
            if isinstance(node, ast.Assign)
            else node.target
            if isinstance(node, ast.AnnAssign)
            else None
        )
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if not isinstance(target, ast.Name) or not isinstance(value, ast.Constant) or not isinstance(value.value, str):
            continue
        if not NAME.fullmatch(value.value) or value.value in NO_EVENTS:
            continue
        after = body[place + 1] if place + 1 < len(body) else None
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        yield target.id, value.value, " ".join(str(text).split())


def logged_names() -> set[str]:
    """Return the names of the constants that a log is called with, in both packages."""
    return set(_levels())


@cache
def _levels() -> dict[str, set[str]]:
    """Return the levels at which each constant is logged."""
    found: dict[str, set[str]] = {}
    for package in ("queue_core", "orchestrator"):
        for module in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(module.read_text())):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                    continue
                first = node.args[0]
                name = (
                    first.attr if isinstance(first, ast.Attribute) else first.id if isinstance(first, ast.Name) else ""
                )
                if node.func.attr in (*LEVELS, "warn") and name.isupper():
                    found.setdefault(name, set()).add(node.func.attr.replace("exception", "error"))
    return found


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _least(levels: set[str]) -> str:
    return next((one for one in LEVELS if one in levels or (one == "warning" and "warn" in levels)), "info")
