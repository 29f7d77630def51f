"""A new rare field of a task, as CONTRIBUTING says to add one: what it takes, and that it then goes every way."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stores.stores import STORES, opened

ROOT = Path(__file__).parents[2]
MOST_FILES = 6
CHECK = '''def check_note(note: object) -> None:
    """Raise `InvalidRequestError` unless this is a note: text of at most 100 characters."""
    if not isinstance(note, str) or len(note) > 100:
        raise InvalidRequestError("a note must be text of at most 100 characters")
    check_text("note", note)


'''
EDITS = {
    "queue_core/limits.py": (("def check_progress(", f"{CHECK}def check_progress("),),
    "queue_core/rare_fields.py": (
        ("import check_headers", "import check_headers, check_note"),
        ("] = (HEADERS,)", '] = (HEADERS, RareField("note", check_note, str))'),
        ("return task.headers is not None", "return task.headers is not None or task.note is not None"),
        ("\n\nT = TypeVar", "\n    @property\n    def note(self) -> str | None: ...\n\n\nT = TypeVar"),
    ),
    "queue_core/task.py": (
        (
            "    priority: int = 0\n\n\n@value\nclass Progress",
            "    priority: int = 0\n    note: str | None = None\n\n\n@value\nclass Progress",
        ),
        (
            "    priority: int = 0\n\n    @property\n    def token",
            "    priority: int = 0\n    note: str | None = None\n\n    @property\n    def token",
        ),
        (
            "    checkpoint: bytes | None = None\n\n    @property\n    def waited",
            "    checkpoint: bytes | None = None\n    note: str | None = None\n\n    @property\n    def waited",
        ),
    ),
    "queue_core/server/schemas.py": (
        ("\n    def value(self) -> NewTask:", "    note: str | None = None\n\n    def value(self) -> NewTask:"),
        ("            self.priority,\n", "            self.priority,\n            self.note,\n"),
        (
            '    checkpoint: NotRequired[Annotated[str, Field(description="Base64; left out: no',
            '    note: NotRequired[str]\n    checkpoint: NotRequired[Annotated[str, Field(description="Base64; left out: no',  # noqa: E501
        ),
        ("    priority: NotRequired", "    note: NotRequired[str]\n    priority: NotRequired"),
    ),
    "queue_core/cli/commands/add.py": (
        ('@click.option("--delay"', '@click.option("--note", help="Note of the tasks.")\n@click.option("--delay"'),
        ("    priority: int,\n", "    priority: int,\n    note: str | None,\n"),
        ("headers=carried, priority=priority)", "headers=carried, priority=priority, note=note)"),
    ),
}
"""What a field `note` takes: in each file, texts and what stands in their place."""

NOTE = 'quoted "celery-id":"11111111", back\\slash and ü'
STORY = """
import asyncio, json, sys, urllib.request
from queue_core import NewTask, QueueSpec, open_queues, open_queues_async
from queue_core.errors import InvalidRequestError
from queue_core.verbs import Deletion
from queue_core.verbs.criteria import Search

NOTE = sys.argv[2]
TASKS = [NewTask(b"1", note=NOTE, headers={"a": "b"}, priority=1), NewTask(b"2", note=NOTE), NewTask(b"3")]

def story(queues):
    queue = queues.queue("jobs")
    for task in TASKS:
        queue.add(task)
    queue.add(TASKS)
    queue.add(NewTask(b"x" * 5000, note=NOTE, delay_seconds=3600))
    shown = [(task.note, task.headers) for task in queue.peek(limit=100).tasks]
    assert [(task.note, task.headers) for task in queue.search(Search()).tasks] == shown
    leases = queue.lease(3)
    queue.release(leases[0])
    next_leases, _ = queue.exchange([Deletion(leases[1].token, (NewTask(b"then", note="then"),))], count=100)
    leased = [(one.note, one.headers) for one in (*leases, *next_leases)]
    queue.delete([leases[2], *next_leases])
    left = sorted((task.note or "", task.state.name) for task in queue.peek(limit=100).tasks)
    try:
        queue.add(NewTask(b"", note="x" * 101))
    except InvalidRequestError as error:
        refused = str(error)
    queue.purge()
    return [shown, leased, left, refused]

async def asynchronous(url):
    async with await open_queues_async(url) as queues:
        await queues.queue("jobs").add(TASKS[1])
        (lease,) = await queues.queue("jobs").lease()
        await queues.queue("jobs").delete(lease)
        return lease.note

def served(store_url):
    from queue_core.server.base.options import ServeOptions
    from queue_core.server.server import ServerThread
    from queue_core.stores import open_store
    store = open_store(store_url)
    server = ServerThread(store, ServeOptions(port=0))
    url = server.start()
    try:
        schemas = json.load(urllib.request.urlopen(f"{url}/openapi.json"))["components"]["schemas"]
        assert all("note" in schemas[name]["properties"] for name in ("TaskIn", "LeaseOut", "TaskOut"))
        with_client = open_queues(url)
        outcome = story(with_client)
        with_client.close()
        return outcome, asyncio.run(asynchronous(url))
    finally:
        server.stop()
        store.close()

queues = open_queues(sys.argv[1])
queues.put_queue(QueueSpec("jobs", retry_min_seconds=0.0, retry_max_seconds=0.0))
local = story(queues)
if sys.argv[1] != "memory:":
    remote, noted = served(sys.argv[1])
    assert remote == local, (remote, local)
    assert noted == NOTE
queues.close()
print(json.dumps(local))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the product in which tasks have a note."""
    copy = tmp_path_factory.mktemp("copy")
    for package in ("queue_core", "orchestrator"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__", "manual"))
    for path, edits in EDITS.items():
        text = (copy / path).read_text()
        for old, new in edits:
            assert text.count(old) == 1, (path, old)
            text = text.replace(old, new)
        (copy / path).write_text(text)
    yield copy


def _run(tree: Path, *arguments: str) -> str:
    """Run a Python program of the copy; return what it printed."""
    environment = {**os.environ, "PYTHONPATH": os.fspath(tree)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_rare_field_names_few_files_as_contributing_says() -> None:
    assert len(EDITS) <= MOST_FILES
    page = (ROOT / "CONTRIBUTING.md").read_text()
    section = page.split("## Add a rare field of a task", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"`(queue_core/[a-z_/]+\.py)`", section)) == set(EDITS)
    assert f"{len(EDITS)} files" in section


@pytest.mark.parametrize("name", STORES)
def test_a_new_rare_field_goes_to_every_store_and_back_in_process_and_over_http(
    name: str, tree: Path, tmp_path: Path
) -> None:
    with opened(name, tmp_path) as store:
        url = "memory:" if name == "memory" else store.url
        shown, leased, left, refused = json.loads(_run(tree, "-c", STORY, url, NOTE))
    one, two, three = [NOTE, {"a": "b"}], [NOTE, None], [None, None]
    assert shown == [one, two, three, one, two, three, two]
    assert sorted(leased[:3], key=str) == sorted([one, one, two], key=str)
    assert sorted(leased[3:], key=str) == sorted([one, two, three, three, ["then", None]], key=str)
    assert left == [[NOTE, "DELAYED"]]
    assert refused.startswith("a note must be text of at most 100 characters")


def test_a_new_rare_field_goes_through_commands_and_exports(tree: Path, tmp_path: Path) -> None:
    def towline(*arguments: str) -> str:
        return _run(tree, "-c", "from orchestrator.cli import main; main()", *arguments)

    old, new = (f"sqlite:///{tmp_path}/{name}.db" for name in ("old", "new"))
    made = "from queue_core import *; open_queues(sys.argv[1]).put_queue(QueueSpec('jobs'))"
    _run(tree, "-c", f"import sys; {made}", old)
    towline("add", "jobs", "text", "--name", "one", "--note", NOTE, "--store", old)
    towline("export", f"{tmp_path}/tasks", "--store", old)
    towline("import", f"{tmp_path}/tasks", "--store", new)
    assert f"  note: {NOTE}" in towline("why", "one", "--store", new)
    peeked = json.loads(towline("peek", "jobs", "--json", "--store", new))["tasks"]
    leased = json.loads(towline("lease", "jobs", "--json", "--store", new))
    assert [one["note"] for one in (*peeked, leased)] == [NOTE, NOTE]
