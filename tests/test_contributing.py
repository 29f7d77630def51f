"""CONTRIBUTING.md is right: what it says is done in a copy of the sources, and the files are counted."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
FACADE: Final = "queue_core/client/asynchronous/facade.py"

TOUCH: Final[Mapping[str, tuple[str, str]]] = {
    "queue_core/events.py": ('TASK_RETAGGED = "task.retagged"\n', 'TASK_TOUCHED = "task.touched"\n'),
    "queue_core/semantics.py": (
        "def fitting(",
        '''\
def touch(task: StoredTask, *, label: str) -> StoredTask:
    """Label a task that nobody has leased."""
    return task if task.state is TaskState.LEASED else replaced(task, tag=label)


''',
    ),
    "queue_core/unit/queue_verbs.py": (
        "@dataclass(frozen=True, slots=True)\nclass Retag(",
        '''\
@dataclass(frozen=True, slots=True)
class Touch(ChangeTasks):
    """Label the named tasks that nobody has leased."""

    path = "/v1/queues/{queue}/touch"
    summary = "Label tasks."
    operation = audit = "touch"
    permission, role, access = "touch", roles.OPERATE, "update"
    request = ("TouchRequest", "Tasks by name, and their label.")
    answers = answers.Count
    event = events.TASK_TOUCHED

    names: list[str]
    label: str

    def check(self) -> None:
        """See `Verb.check`."""
        limits.check_known_names(self.names)
        limits.check_tag(self.label)

    def selector(self) -> Selector:
        """See `ChangeTasks.selector`."""
        return named(self.names)

    def transition(self, task: StoredTask, *, now: Instant) -> StoredTask:
        """See `ChangeTasks.transition`."""
        return semantics.touch(task, label=self.label)


''',
    ),
    "queue_core/client/queue.py": (
        "    def stats(self",
        '''\
    def touch(self, names: str | Iterable[str], *, label: str) -> int:
        """Label the named tasks that nobody has leased; return how many."""
        return self._call(queue_verbs.Touch(self.name, as_names(names), label))

''',
    ),
}
"""Where each part of a verb is put: the text before which it stands, or that it follows, and the part."""
BEFORE: Final = ("def ", "    def ", "@dataclass")
"""Beginnings of definitions: a part is put before one, and after anything else."""
LIST: Final = "SERVED: Final = ("
"""What is followed by the names of the verbs that a server serves."""

STORY: Final = """
import asyncio
import json
import urllib.request

from queue_core import NewTask, QueueSpec, LocalQueues, HttpQueues, open_queues_async
from queue_core.errors import PermissionDeniedError
from queue_core.verbs.roles import Role
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.server import ServerThread
from queue_core.unit.service import QueueService
from queue_core.stores import open_store


def labels(queue):
    return [task.tag for task in queue.peek(names=["a"]).tasks]


store = open_store("memory:")
tokens = (AccessToken(Role.ADMIN, "admin-admin-admin"), AccessToken(Role.WORKER, "worker-worker-wor"))
server = ServerThread(store, ServeOptions(port=0, tokens=tokens))
server.start()
try:
    local = LocalQueues(QueueService(store))
    local.put_queue(QueueSpec("q"))
    local.queue("q").add([NewTask(b"x", name="a")])
    assert (local.queue("q").touch("a", label="here"), labels(local.queue("q"))) == (1, ["here"])

    remote = HttpQueues(server.url, token="admin-admin-admin")
    assert (remote.queue("q").touch(["a", "b"], label="far"), labels(remote.queue("q"))) == (1, ["far"])
    try:
        HttpQueues(server.url, token="worker-worker-wor").queue("q").touch("a", label="no")
    except PermissionDeniedError:
        pass
    else:
        raise AssertionError("a worker's token labels no task")

    async def label() -> int:
        async with await open_queues_async(server.url, token="admin-admin-admin") as queues:
            return await queues.queue("q").touch("a", label="later")

    assert (asyncio.run(label()), labels(remote.queue("q"))) == (1, ["later"])
    with urllib.request.urlopen(server.url + "/openapi.json") as answer:
        assert json.load(answer)["paths"]["/v1/queues/{queue}/touch"]["post"]["operationId"] == "touch"
finally:
    server.stop()
print("told")
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what a verb is made in."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "queue_core", tmp_path / "queue_core", ignore=ignored)
    (tmp_path / "tests/support").mkdir(parents=True)
    for package in ("tests", "tests/support"):
        (tmp_path / package / "__init__.py").touch()
    for kept in ("pyproject.toml", "tests/support/async_facade.py"):
        shutil.copy(ROOT / kept, tmp_path / kept)
    return tmp_path


def run(copy: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def insert(path: Path, place: str, part: str) -> None:
    """Put a part before a definition, or after a line."""
    text = path.read_text(encoding="utf-8")
    assert place in text, (path, place)
    put = f"{part}{place}" if place.startswith(BEFORE) else f"{place}{part}"
    path.write_text(text.replace(place, put), encoding="utf-8")


def changed_lines(copy: Path) -> dict[str, int]:
    """Return how many lines each file that differs has more than the original."""
    files = [path.relative_to(copy) for path in (copy / "queue_core").rglob("*.py")]
    before = {path: (ROOT / path).read_text(encoding="utf-8") for path in files}
    after = {path: (copy / path).read_text(encoding="utf-8") for path in files}
    return {
        str(path): len(after[path].splitlines()) - len(before[path].splitlines())
        for path in files
        if after[path] != before[path]
    }


def section(title: str) -> str:
    """Return a section of CONTRIBUTING.md."""
    return (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_a_verb_takes_the_files_that_the_page_names(copy: Path) -> None:
    for name, (place, part) in TOUCH.items():
        insert(copy / name, place, part)
    insert(copy / "queue_core/unit/queue_verbs.py", LIST, "Touch, ")
    run(copy, "-m", "tests.support.async_facade")
    assert run(copy, "-c", STORY) == "told\n"

    changed = changed_lines(copy)
    assert set(changed) == {*TOUCH, FACADE}
    assert all(f"`{name}`" in section("Add a verb") for name in changed)
    assert len(changed) == 5
    assert sum(changed.values()) <= 60
