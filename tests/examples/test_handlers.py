"""Every example runs as its page says: its settings are right, and its handlers do their work."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import read_settings
from queue_core import App, Dead, NewTask, open_queue
from queue_core.testing import MemoryQueues, run_until_empty

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MOST_LINES = 60
PUBLIC = {"queue_core", "queue_core.kombu", "orchestrator"}  # the second is what Celery's users import
FOLDERS = sorted(path.parent.name for path in EXAMPLES.glob("*/towline.yaml"))


def app_of(name: str) -> App:
    """The app of an example, imported from its own folder."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / name / "tasks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    assert isinstance(module.app, App)
    return module.app


@pytest.mark.parametrize("name", FOLDERS)
def test_the_settings_of_an_example_are_right_and_its_page_is_listed(name: str) -> None:
    project = read_settings(EXAMPLES / name / "towline.yaml")
    assert project.pools
    assert f"({name}/README.md)" in (EXAMPLES / "README.md").read_text()
    assert f"cd examples/{name}\n" in (EXAMPLES / name / "README.md").read_text()


def test_checksums_are_written_and_a_missing_file_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_bytes(b"")
    tasks = [NewTask(name, queue="files", tag="checksum") for name in (b"a", b"missing")]
    found, missing = run_until_empty(app_of("checksums"), tasks)
    assert found.error is None
    assert "missing" in str(missing.error) and missing.attempts == 1
    assert (tmp_path / "checksums.txt").read_text().startswith("e3b0c44298fc1c149afbf4c8996fb924")


def test_a_book_is_taken_apart_and_each_page_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book").write_text("two words\n" * 100)
    outcomes = run_until_empty(app_of("pipeline"), [NewTask(b"book", queue="books", tag="read")])
    assert [outcome.error for outcome in outcomes] == [None] * 4
    counts = [line.split() for line in (tmp_path / "counts.txt").read_text().splitlines()]
    assert sorted(counts) == [["40", "book:3"], ["80", "book:1"], ["80", "book:2"]]


def test_thumbnails_are_made_by_the_function_that_a_program_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, queues = EXAMPLES / "thumbnails" / "tasks.py", MemoryQueues()
    assert len(re.findall(r"\S.*\n", program.read_text())) <= 20
    monkeypatch.chdir(tmp_path)
    rows = [bytes([column, row, 0]) for row in range(100) for column in range(200)]
    Path("cat.ppm").write_bytes(b"P6\n200 100\n255\n" + b"".join(rows))
    Path("page.txt").write_text("text")
    app = app_of("thumbnails")
    resize = sys.modules["example_thumbnails"].resize
    with app.bound_to(queues):
        for name in ("cat.ppm", "page.txt"):
            resize.add(Path(name), width=100)
    made, refused = run_until_empty(app, queues=queues)
    assert made.error is None
    assert isinstance(refused.error, Dead)
    small = [bytes([column, row, 0]) for row in range(0, 100, 2) for column in range(0, 200, 2)]
    assert Path("cat.100.ppm").read_bytes() == b"P6 100 50 255\n" + b"".join(small)


def test_the_thumbnails_program_adds_what_its_command_line_names(tmp_path: Path) -> None:
    folder = EXAMPLES / "thumbnails"
    store = f"sqlite:///{tmp_path}/q.db"
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "TOWLINE_STORE": store, "TOWLINE_URL": ""}
    command = [sys.executable, "tasks.py", "a.ppm", "b.ppm"]
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=60)
    queue = open_queue(store, "thumbs")
    added = [(task.tag, task.payload) for task in queue.peek(payload_bytes=100).tasks]
    queue.close()
    assert added == [
        ("resize", b'{"path":"a.ppm","width":100}'),
        ("resize", b'{"path":"b.ppm","width":100}'),
    ]


def test_every_example_is_in_the_table_and_its_page_is_short_and_says_what_to_kill() -> None:
    pages = sorted(EXAMPLES.glob("*/README.md"))
    listed = re.findall(r"^\| \[([^\]]+)\]\(\1/README\.md\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == [page.parent.name for page in pages]
    for page in pages:
        text = page.read_text()
        assert len(text.splitlines()) <= MOST_LINES, page
        assert "kill" in text, page


def test_examples_use_public_names_only() -> None:
    for path in sorted(EXAMPLES.rglob("*.py")):
        imported = re.findall(
            r"^\s*(?:from|import) ((?:queue_core|orchestrator)[\w.]*)", path.read_text(), re.MULTILINE
        )
        assert set(imported) <= PUBLIC, path
