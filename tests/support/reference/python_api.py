"""The page of the Python API: every public name with its signature and its docstring."""

import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Final, get_args, get_origin

from pydantic import BaseModel

import queue_core
from tests.support.reference.markdown import code, page, sentence, table

MODULES: Final = ("queue_core", "queue_core.testing", "queue_core.django", "queue_core.telemetry", "orchestrator")
"""The modules that programs import from."""

INTRODUCTION: Final = """\
Programs import from the modules below, and from no other: all else may change without notice. Times that are called
`Instant` are microseconds since the epoch, all others seconds. [Errors](errors.md) have their own page."""

GROUPS: Final = (
    ("Open queues", "open_queue open_queues open_queue_async open_queues_async connect_appengine Retries"),
    (
        "Queues",
        "Queue Queues AsyncQueue AsyncQueues LocalQueue LocalQueues HttpQueue HttpQueues",
    ),
    (
        "Tasks and leases",
        (
            "NewTask TagFilter ANY UNTAGGED Lease StoredTask TaskState Attempt Failure Progress Added Deletion "
            "ExchangeResult Renewal Renewed Page Search SearchPage ChangeTo MatchedBatch Instant"
        ),
    ),
    ("Handlers", "App Task Retry Dead Backoff Timeout Function Injected INJECTED"),
    (
        "Settings and figures",
        (
            "QueueSpec Rate TagLimits Storage QueueStats TagStats History FinishedLease LiveLease LeasingWorker "
            "WaitingTask WorkerActivity Samples Observation ObservationQuery"
        ),
    ),
)
"""Where the names of `queue_core` are told."""

MADE_LATER: Final = frozenset({"app"})
"""Names of values that are made of a Django project's settings."""

OPENED: Final = frozenset({"AsyncQueue", "AsyncQueues", "LocalQueue", "LocalQueues", "HttpQueue", "Supervisor"})
"""Classes whose objects other functions make."""

_SAME: Final = re.compile(r"See `(\w+)\.\w+`\.")
_ARGS: Final = re.compile(r"^(Args|Raises|Returns|Yields|Source):\n", re.MULTILINE)


def public(module: ModuleType) -> list[str]:
    """Return a module's public names, without errors, which have a page of their own."""
    return [name for name in module.__all__ if not _is_error(_found(module, name))]


def python_api_page() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for path in MODULES:
        module = importlib.import_module(path)
        names = public(module)
        parts += [f"## {code(path)}", docstring(module)]
        if path != "queue_core":
            parts += [_name(name, _found(module, name), path) for name in names]
            continue
        for title, of_group in GROUPS:
            parts.append(f"## {title}")
            parts += [_name(name, _found(module, name), path) for name in of_group.split()]
    return page("Python API", "docstrings", *parts)


def _found(module: ModuleType, name: str) -> object:
    """Return what a name is; one that is made of a program's own settings is not made here."""
    return None if name in MADE_LATER else getattr(module, name)


def _is_error(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, Exception) and found.__name__.endswith("Error")


def _name(name: str, found: object, path: str) -> str:
    heading = f"### {name}\n\n```text\n{_import(name, path)}\n```"
    if isinstance(found, type):
        return "\n\n".join([heading, *_class(found)])
    if inspect.isfunction(found):
        return f"{heading}\n\n{_signature(name, found)}\n\n{docstring(found)}"
    return f"{heading}\n\n{_constant(name, found)}"


def _import(name: str, path: str) -> str:
    return f"from {path} import {name}"


def _constant(name: str, found: object) -> str:
    if get_origin(found) is not None:
        return sentence(f"One of {', '.join(code(repr(one)) for one in get_args(found))}")
    supertype = getattr(found, "__supertype__", None)
    if supertype is not None:
        return sentence(f"{code(supertype.__name__)} {CONSTANTS[name]}")
    return CONSTANTS[name]


CONSTANTS: Final = {
    "app": "The `App` with the handlers of a Django project: `towline work queue_core.django:app`, or a pool's `app`.",
    "ANY": "The `TagFilter` that takes every task, with any tag or none.",
    "UNTAGGED": "The `TagFilter` that takes only tasks without a tag.",
    "INJECTED": "The default of a parameter that the worker fills in: `def resize(path: str, task: Task = INJECTED)`.",
    "Instant": "of microseconds since the epoch, UTC: `Instant(1_767_225_600_000_000)`.",
    "Monotonic": "of seconds of a clock that is never stepped, from an arbitrary start.",
}
"""What names are that have no docstring of their own."""


def _class(found: type) -> Iterator[str]:
    text = docstring(found)
    if issubclass(found, enum.Enum):
        yield text
        yield table(("member", "value"), [(code(one.name), code(str(one.value))) for one in found])
        return
    constructor = _constructor(found)
    if constructor:
        yield constructor
    if issubclass(found, BaseModel):
        text = f"{text}\n\nIts fields are those of [the settings file](settings.md)."
    yield text
    own = vars(found).get("__init__")
    if constructor and inspect.isfunction(own) and own.__doc__ and not dataclasses.is_dataclass(found):
        yield docstring(own)
    members = list(_members(found))
    same = {name: as_in for name, member in members if (as_in := _same_as(found, member))}
    if same:
        protocol = next(iter(same.values()))
        order = [name for name, _ in _members(getattr(queue_core, protocol))]
        names = ", ".join(code(f".{name}") for name in sorted(same, key=order.index))
        yield f"As in {code(protocol)}{', awaited' if found.__name__.startswith('Async') else ''}: {names}."
    for name, member in members:
        if name in same:
            continue
        if isinstance(member, property):
            yield f"**{code(f'.{name}')}** {docstring(member)}"
        else:
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            yield f"{_signature(f'.{name}', function)}\n\n{docstring(function)}"


def _same_as(found: type, member: object) -> str:
    """Return the public protocol that a member is inherited from, or whose description it refers to; "": neither."""
    as_in = _SAME.fullmatch(inspect.getdoc(member) or "")
    if as_in:
        return as_in[1]
    function = member.fget if isinstance(member, property) else member
    owner = getattr(function, "__qualname__", "").partition(".")[0]
    return owner if owner in ("Queue", "Queues") and owner != found.__name__ else ""


def _members(found: type) -> Iterator[tuple[str, object]]:
    """Yield the public members of a class, those of its bases that are no public classes too."""
    seen: set[str] = set()
    for base in found.__mro__:
        if base is object or base.__module__.split(".")[0] not in ("queue_core", "orchestrator"):
            continue
        for name, member in vars(base).items():
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            is_told = isinstance(member, property) or inspect.isfunction(function)
            if not name.startswith("_") and is_told and name not in seen and name != "model_post_init":
                seen.add(name)
                yield name, member


def _constructor(found: type) -> str:
    if (
        found.__name__ in OPENED
        or issubclass(found, BaseModel)
        or getattr(found, "_is_protocol", False)
        or found.__init__ is object.__init__
    ):
        return ""
    try:
        inspect.signature(found)
    except (TypeError, ValueError):
        return ""
    return _signature(found.__name__, found)


def _signature(name: str, found: object) -> str:
    """Return how something is called, with a line for each parameter where one line is too short."""
    signature = inspect.signature(found)  # type: ignore[arg-type]
    parameters = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
    shown: list[str] = []
    starred = False
    for one in parameters:
        if one.kind is inspect.Parameter.VAR_POSITIONAL:
            starred = True
        if one.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        shown.append(_parameter(one))
    is_type = isinstance(found, type) or signature.return_annotation is inspect.Signature.empty
    answer = "" if is_type else f" -> {_annotation(signature.return_annotation)}"
    call = f"{name}({', '.join(shown)}){answer}"
    if len(call) > 88:
        call = f"{name}(\n" + "".join(f"    {one},\n" for one in shown) + f"){answer}"
    return f"```text\n{'async ' if inspect.iscoroutinefunction(found) else ''}{call}\n```"


def _parameter(one: inspect.Parameter) -> str:
    is_many, is_named = one.kind is inspect.Parameter.VAR_POSITIONAL, one.kind is inspect.Parameter.VAR_KEYWORD
    mark = "*" if is_many else "**" if is_named else ""
    text = f"{mark}{one.name}"
    if one.annotation is not inspect.Parameter.empty:
        text += f": {_annotation(one.annotation)}"
    if one.default is not inspect.Parameter.empty:
        text += f" = {_default(one.default)}"
    return text


def _default(value: object) -> str:
    if value == queue_core.ANY:
        return "ANY"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if repr(value).startswith("<factory>") or "factory" in repr(value) or " object at " in repr(value):
        return "..."
    text = repr(value)
    return text if len(text) < 40 else "..."


def _annotation(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?:queue_core|orchestrator|collections|typing|pathlib|types)(?:\.\w+)*\.(\w+)", r"\1", text)
    text = re.sub(r"\bOptional\[([^\[\]]*(?:\[[^\[\]]*\])?)\]", r"\1 | None", text).replace("~", "")
    return text if "Literal" in text else text.replace("'", "").replace('"', "")


def docstring(found: object) -> str:
    """Return a docstring as Markdown: code as blocks, arguments as a list."""
    text = inspect.getdoc(found) or ""
    if dataclasses.is_dataclass(found) and text.startswith(f"{getattr(found, '__name__', '')}("):
        text = ""
    parts = _ARGS.split(text)
    made = [_paragraphs(parts[0])]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        made.append(_list(body) if title == "Args" else f"{title}: {' '.join(body.split())}")
        rest = _after(body)
        if title == "Args" and rest:
            made.append(_paragraphs(rest))
    return "\n\n".join(one for one in made if one)


def _after(body: str) -> str:
    """Return what follows an indented list of arguments."""
    lines = body.splitlines()
    for place, line in enumerate(lines):
        if line and not line.startswith(" "):
            return "\n".join(lines[place:])
    return ""


def _list(body: str) -> str:
    items: list[str] = []
    for line in body.splitlines():
        if line and not line.startswith(" "):
            break
        found = re.match(r"^    (\*{0,2}[\w, ]+): (.*)$", line)
        if found:
            items.append(f"- {code(found[1])}: {found[2]}")
        elif line.strip() and items:
            items[-1] += f" {line.strip()}"
    return "\n".join(sentence(one) for one in items)


def _paragraphs(text: str) -> str:
    made: list[str] = []
    for one in re.split(r"\n\s*\n", text.strip("\n")):
        if one.startswith("    "):
            block = "\n".join(line.removeprefix("    ") for line in one.splitlines())
            if made and made[-1].endswith("\n```"):
                made[-1] = f"{made[-1].removesuffix('```')}\n{block}\n```"
            else:
                made.append(f"```text\n{block}\n```")
        elif re.match(r"[-*] ", one):
            made.append(one)
        else:
            made.append(re.sub(r"^(\w+): ", r"`\1`: ", " ".join(one.split())))
    return "\n\n".join(made)
