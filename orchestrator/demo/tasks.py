"""The demo's app: `parse` reads a module, then `render` writes its page.

Every handler also sleeps, like work that waits for a disk or another machine: that is why many workers make sense on
two cores. Results are written atomically, so running a task twice does no harm.
"""

import json
import os
import time
import tokenize
from pathlib import Path
from typing import Final

from orchestrator.demo.library import Module, read_module
from orchestrator.demo.pages import STYLE, index_page, module_page, page_name
from queue_core.task import NewTask
from queue_core.worker.app import App
from queue_core.worker.context import Task

QUEUE: Final = "library"
INDEX: Final = "index"
FOLDER_VARIABLE: Final = "TOWLINE_DEMO_FOLDER"
REST_VARIABLE: Final = "TOWLINE_DEMO_REST_SECONDS"

app = App()


@app.task(queue=QUEUE, tag="parse")
def parse(task: Task) -> NewTask:
    """Read one module; its render task is added in the transaction that deletes this task."""
    folder, work = _folder(), json.loads(task.payload)
    module = read_module(work["module"], Path(work["path"]))
    _pause()
    write_whole(folder / "parsed" / f"{module.name}.json", module.to_json())
    _record_done(folder, task)
    return render_task(module.name, work["path"])


@app.task(queue=QUEUE, tag="render")
def render(task: Task) -> None:
    """Write one page, or the index when everything else is done."""
    folder, work = _folder(), json.loads(task.payload)
    known = frozenset(json.loads((folder / "modules.json").read_text()))
    if work["module"] == INDEX:
        write_index(folder, python=work["python"])
    else:
        module = _parsed(folder, work["module"])
        with tokenize.open(work["path"]) as file:
            page = module_page(module, file.read(), known=known)
        _pause()
        write_whole(folder / "report" / page_name(module.name), page)
    _record_done(folder, task)


def parse_task(module: str, path: Path) -> NewTask:
    """Return the first task of a module."""
    return NewTask(
        json.dumps({"module": module, "path": str(path)}).encode(), name=task_name("parse", module), tag="parse"
    )


def render_task(module: str, path: str) -> NewTask:
    """Return the second task of a module."""
    return NewTask(
        json.dumps({"module": module, "path": path}).encode(), name=task_name("render", module), tag="render"
    )


def index_task(python: str) -> NewTask:
    """Return the last task of the run."""
    return NewTask(
        json.dumps({"module": INDEX, "python": python}).encode(), name=task_name("render", INDEX), tag="render"
    )


def task_name(stage: str, module: str) -> str:
    """Return the name of a module's task; names have no dots."""
    return f"{stage}-{module.replace('.', '-')}"


def write_index(folder: Path, *, python: str) -> None:
    """Write the index of the modules whose pages are there."""
    report = folder / "report"
    names = sorted(json.loads((folder / "modules.json").read_text()))
    modules = [_parsed(folder, name) for name in names if (report / page_name(name)).is_file()]
    write_whole(report / "style.css", STYLE)
    write_whole(report / page_name(INDEX), index_page(modules, python=python))


def _folder() -> Path:
    return Path(os.environ[FOLDER_VARIABLE])


def _pause() -> None:
    time.sleep(float(os.environ[REST_VARIABLE]))


def _parsed(folder: Path, name: str) -> Module:
    return Module.from_json((folder / "parsed" / f"{name}.json").read_text())


def write_whole(path: Path, text: str) -> None:
    """Write the file atomically: complete or not at all, even if this process is killed."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _record_done(folder: Path, task: Task) -> None:
    """Append one line per finished run of a task, to detect tasks that ran twice."""
    with (folder / "done.txt").open("ab", buffering=0) as file:
        file.write(f"{task.name}\n".encode())
