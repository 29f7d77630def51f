"""`towline init`: write what is missing of a commented settings file and an example program, and overwrite nothing."""

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

from orchestrator.cli.project_file import load_project
from orchestrator.settings_file import DEFAULT_FILE
from queue_core.cli import exits
from queue_core.cli.commands.queues_apply import load_queue_file_entries
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import json_option
from queue_core.cli.output import echo, print_info, print_json
from queue_core.config.units import format_bytes
from queue_core.google.queue_files.entries import QueueFileEntries
from queue_core.process.private_files import source_opener
from queue_core.task import QueueSpec

_PLAIN: Final = re.compile(r"(?!(?:true|false|null|yes|no|on|off|y|n)$)[A-Za-z][A-Za-z0-9-]*", re.IGNORECASE)
_POOL: Final = """\
#   {key}:
#     queue: {key}
#     command: [python, worker.py]  # or app: tasks:app, with handlers of this project's own
#     slo: 30s                    # the longest a task may wait for its lease: what the pool is sized by
#     workers: {{min: 0, max: 8}}
"""


def settings_text(entries: QueueFileEntries, *, head: str, source: str) -> str:
    """Return the whole file: `head` (store, server), the queues, a commented pool for each, and what was left out.

    Args:
        source: name of the file that the queues come from.
    """
    queues = "".join(_queue(spec) for spec in entries.queues)
    pools = "".join(_POOL.format(key=_key(spec.name)) for spec in entries.queues)
    limit_bytes = entries.total_storage_limit_bytes
    limit = "" if limit_bytes is None else f"total_storage_limit: {format_bytes(limit_bytes)}\n"
    text = f"{head}{limit}\n# Pull queues of {_line(source)}.\n" + (f"queues:\n{queues}" if queues else "queues: {}\n")
    if pools:
        text += (
            f"\n# Pools of workers, one for each queue: give it its program, and take the # away.\n# pools:\n{pools}"
        )
    left = _left_out(entries)
    return (
        text + (f"\n# Not carried over from {_line(source)}:\n" if left else "") + "".join(f"# - {it}\n" for it in left)
    )


def _queue(spec: QueueSpec) -> str:
    lines = []
    if spec.max_leases is not None:
        lines.append(f"max_leases: {spec.max_leases}".ljust(28) + "# task_retry_limit")
    lines.append("on_exhausted: delete".ljust(28) + "# as App Engine does at the limit; dead keeps the task instead")
    if spec.user_emails or spec.writer_emails:
        lines.append("acl:".ljust(28) + "# who may use the REST APIs: see email under server.tokens")
    if spec.user_emails:
        lines.append(f"  users: {_list(spec.user_emails)}")
    if spec.writer_emails:
        lines.append(f"  writers: {_list(spec.writer_emails)}")
    return f"  {_key(spec.name)}:\n" + "".join(f"    {line}\n" for line in lines)


def _left_out(entries: QueueFileEntries) -> list[str]:
    left = []
    if entries.push_queues:
        left.append(f"push queues, as nothing here calls handlers: {', '.join(entries.push_queues)}")
    if not entries.resume_paused_queues:
        left.append("resume_paused_queues: False: a queue that is paused stays so until `towline resume`")
    return left


def _key(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else json.dumps(name)


def _list(texts: tuple[str, ...]) -> str:
    """Return a YAML list; JSON's quotes are valid YAML."""
    return json.dumps(texts, ensure_ascii=False)


def _line(text: str) -> str:
    """Return `text` on one line, for a comment."""
    return "".join(character if character.isprintable() else "?" for character in text)


LISTEN: Final = "127.0.0.1:7878"
"""The address that the settings below name."""
HEAD: Final = f"""\
# towline.yaml: queues and the pools of workers that work on them. `towline check` lists every mistake in it,
# `towline config --origin` every setting in force. Durations are 500ms, 30s, 5m, 6h; sizes 64KiB, 512MiB.

store: sqlite:///towline.db     # a file beside this one
durability: strict              # an add that returned survives power loss; relaxed: only a crash of the process

lifecycle: task                 # an event for each change of a task, kept in the file that `log` names:
log: events.jsonl               # read by towline backtest, simulate and doctor; 500 B a task: let logrotate move it

server:
  listen: {LISTEN}        # or unix:towline.sock; another address needs tokens:
  # tokens:
  #   - {{role: producer, token_env: PRODUCER_TOKEN}}
  #   - {{role: admin, token_file: admin.token}}
"""
_QUEUES: Final = """
queues:
  thumbs:
    lease: 30s                  # how long a worker holds a task; renewed while its handler lives
    max_lease: 10m              # the longest a lease may become by renewals
    max_leases: 5               # then the task is dead: kept, listed, and ready again by `towline redrive`
    retry: {min: 1s, max: 5m}   # rest after a failed lease, doubling
"""
_POOLS: Final = """
pools:
  resize:
    queue: thumbs
    tags: [resize]              # leave out for any task
    app: tasks:app              # module:attribute; or command: [./worker, --fast]
    slo: 30s                    # the longest a task may wait for its lease: what the pool is sized by
    workers: {min: 0, max: 8}
    grace: 30s                  # from asking a worker to stop to ending it
    concurrency: 1              # tasks one worker holds at a time
    recycle: {tasks: 1000, memory: 512MiB, age: 6h}
"""
_UNUSED_POOLS: Final = "\n# A pool of workers: give it its program, and take the # away." + _POOLS.replace(
    "\n", "\n# "
).rstrip("# ")
SETTINGS: Final = HEAD + _QUEUES + _POOLS
PROGRAM: Final = '''\
"""Work for the queues of towline.yaml. Try it: towline up, and in another terminal: python3 tasks.py cat.jpg"""

import sys

from queue_core import App

app = App("towline.yaml")


@app.function(queue="thumbs")
def resize(path: str, width: int = 200) -> None:
    """Returning deletes the task; raising gives it back, to be tried again after a rest."""
    print(f"resizing {path} to {width}")


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print("added", resize.add(path).name)
'''
_COMMENT_COLUMN: Final = 28
_EXISTS: Final = "exists already"
_MODULES: Final = ("tasks", "towline_tasks")
"""Names of the example's module: the second, where the first is a program of the user's own."""


@dataclass(frozen=True, slots=True)
class InitPlan:
    """The files to write, and why others are left: by name. `example` is the program to try, if there is one."""

    write: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    example: str | None = None


def plan_of(programs: Mapping[str, str], *, settings_app: str | None, has_settings: bool, example: bool) -> InitPlan:
    """Return what `init` writes beside what is there. Pure.

    Args:
        programs: the text of each program of `_MODULES` that is there, by its module's name.
        settings_app: the module:attribute that the existing settings name for the example's queue and tag.
        has_settings: whether there are settings already.
        example: whether the example is wanted.
    """
    if has_settings:
        return _plan_with_settings(programs, settings_app, example=example)
    for module in _MODULES:
        name, text = f"{module}.py", programs.get(module)
        if text is None and example:
            write = {DEFAULT_FILE: _with_app(SETTINGS, module), name: PROGRAM.replace("tasks.py", name)}
            left = {f"{one}.py": "a program of your own" for one in programs if one != module}
            return InitPlan(write, left, name)
        if text is not None and works_on_example(text):
            return InitPlan({DEFAULT_FILE: _with_app(SETTINGS, module)}, {name: _EXISTS}, name)
    left = {f"{one}.py": "a program of your own" for one in programs} if example else {}
    return InitPlan({DEFAULT_FILE: HEAD + _QUEUES + _UNUSED_POOLS}, left)


def _plan_with_settings(programs: Mapping[str, str], settings_app: str | None, *, example: bool) -> InitPlan:
    left = {DEFAULT_FILE: _EXISTS} | {f"{module}.py": _EXISTS for module in programs}
    module, _, attribute = (settings_app or "").partition(":")
    if not example or module in programs:
        return InitPlan({}, left, f"{module}.py" if module in programs else None)
    if module not in _MODULES or attribute != "app":
        why = f"not written, as no pool of {DEFAULT_FILE} names it by app: tasks:app for queue thumbs and tag resize"
        return InitPlan({}, left | {"tasks.py": why} if "tasks" not in programs else left)
    name = f"{module}.py"
    return InitPlan({name: PROGRAM.replace("tasks.py", name)}, left, name)


def works_on_example(text: str) -> bool:
    """Return whether a program has an `app` with a handler of the example's queue and tag, as far as its text shows."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return False
    return any(
        _is_handler(decorator, function.name)
        for function in body
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for decorator in function.decorator_list
    )


def _is_handler(decorator: ast.expr, function: str) -> bool:
    match decorator:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="app"), attr="function" | "task" as kind), keywords=keywords
        ):
            given = {one.arg: one.value.value for one in keywords if isinstance(one.value, ast.Constant)}
            tag = given.get("tag", function if kind == "function" else None)
            return given.get("queue") == "thumbs" and tag == "resize"
        case _:
            return False


def _with_app(settings: str, module: str) -> str:
    """Return the settings with the example's app in this module, their comments in one column."""
    before = "app: tasks:app".ljust(_COMMENT_COLUMN)
    return settings.replace(before, f"app: {module}:app".ljust(_COMMENT_COLUMN), 1)


@command(
    "init",
    when_cut="stderr",
    examples=("towline init", "towline init --dir demo", "towline init --no-example", "towline init --from queue.yaml"),
)
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path, file_okay=False), default=".", help="Write into this folder."
)
@click.option("--example/--no-example", default=True, help="Write tasks.py too.")
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With the pull queues of an App Engine queue.yaml or queue.xml, and without tasks.py.",
)
@json_option
def init(folder: Path, example: bool, source: Path | None, as_json: bool) -> int:  # noqa: FBT001
    """Write towline.yaml, with comments, and tasks.py. Existing files are left as they are.

    Beside a tasks.py of your own the example is called towline_tasks.py. With --from, exit code 73: there is a
    towline.yaml already.
    """
    settings = folder / DEFAULT_FILE
    if source is None:
        plan = _plan(folder, example=example)
    else:
        text = settings_text(load_queue_file_entries(source), head=HEAD, source=str(source))
        if settings.exists():
            message = f"{settings}: exists already, and was left as it is"
            fix = "name another folder with --dir, or move it away first"
            raise CommandError(message, code=exits.CANT_CREATE, fix=fix)
        plan = InitPlan({DEFAULT_FILE: text})
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in plan.write.items():
        with open(
            folder / name, "x", encoding="utf-8", opener=source_opener
        ) as file:  # x: never overwrite a file that appeared in between
            file.write(text)
    if as_json:
        left = [{"file": str(folder / name), "why": why} for name, why in plan.left.items()]
        print_json({"written": [str(folder / name) for name in plan.write], "left": left})
        return exits.OK
    for name in plan.write:
        echo(f"wrote {folder / name}")
    for name, why in plan.left.items():
        echo(_left(folder / name, why))
    if not plan.write:
        print_info("nothing was missing: nothing was written")
    print_info(f"next: {_next(plan, folder, is_moving=source is not None)}")
    if DEFAULT_FILE in plan.write:
        print_info(f"manual: http://{LISTEN}/docs/, once it is up")
    return exits.OK


def _left(path: Path, why: str) -> str:
    """Return the sentence about a file that is not written."""
    if not path.exists():
        return f"{path}: {why}"
    return f"left {path} as it is" + ("" if why == _EXISTS else f": {why}")


def _plan(folder: Path, *, example: bool) -> InitPlan:
    programs = {}
    for module in _MODULES:
        path = folder / f"{module}.py"
        if path.exists():
            programs[module] = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    settings = folder / DEFAULT_FILE
    return plan_of(programs, settings_app=_app_in(settings), has_settings=settings.exists(), example=example)


def _app_in(settings: Path) -> str | None:
    """Return the app of the pool that works on the example's queue and tag; None for settings that have none."""
    if not settings.exists():
        return None
    try:
        pools = load_project(settings).pools.values()
    except CommandError:
        return None  # `towline check` says what is wrong
    fits = [pool.app for pool in pools if pool.queue == "thumbs" and (not pool.tags or "resize" in pool.tags)]
    return next((app for app in fits if app), None)


def _next(plan: InitPlan, folder: Path, *, is_moving: bool) -> str:
    place = "" if folder == Path() else f"cd {folder} && "
    if is_moving:
        return f"{place}towline serve; or give its pools their programs, and {place}towline up"
    if plan.example is not None:
        return f"{place}towline up, and in another terminal: {place}python3 {plan.example} cat.jpg"
    if DEFAULT_FILE in plan.write:
        return f"give the pool of {folder / DEFAULT_FILE} its program, then {place}towline up"
    return f"{place}towline check, then {place}towline up"
