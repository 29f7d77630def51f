"""`towline up` on a terminal refuses a program that can't be used, in one sentence with its place."""

from pathlib import Path
from typing import Final

import pytest

from tests.support.terminal import on_terminal

SETTINGS: Final = """\
store: sqlite:///queue.db
server: {listen: "unix:towline.sock"}
queues:
  thumbs: {max_leases: 5}
pools:
  resize: {queue: thumbs, tags: [resize], app: "tasks:app", slo: 5s, workers: {min: 0, max: 2}}
"""
HANDLER: Final = (
    "from queue_core import App\n\napp = App()\n\n\n@app.task(queue='thumbs', tag='{}')\ndef resize(task):\n    pass\n"
)
BROKEN: Final = [
    pytest.param("def resize(task:\n    pass\n", "can't import tasks: tasks.py:1: '(' was never closed", id="syntax"),
    pytest.param(None, "can't import tasks: no such module", id="no such file"),
    pytest.param(HANDLER.replace("app", "application"), "name one of: tasks:application", id="another attribute"),
    pytest.param("import pandass\n", "tasks.py:1: ModuleNotFoundError: No module named 'pandass'", id="missing import"),
    pytest.param(
        HANDLER.format("resise"),
        "no handler for 'resize' in queue 'thumbs'; the app has handlers for 'resise'",
        id="tag",
    ),
]


def up(folder: Path) -> tuple[int, str]:
    """Run `towline up` on a terminal until it ends; return its exit code and what it showed, in one line."""
    with on_terminal("up", folder=folder) as running:
        code = running.ended()
        return code, " ".join(running.text.split())


@pytest.mark.parametrize(("program", "sentence"), BROKEN)
def test_a_program_that_cannot_be_used_is_refused_at_the_start(
    tmp_path: Path, program: str | None, sentence: str
) -> None:
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    if program is not None:
        (tmp_path / "tasks.py").write_text(program)
    code, shown = up(tmp_path)
    assert code == 78
    assert "error: pools.resize.app: " in shown
    assert sentence in shown
    assert "next: fix it, or add --no-import-check" in shown
    assert not (tmp_path / "queue.db").exists()


def test_it_starts_all_the_same_where_asked_to(tmp_path: Path) -> None:
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    with on_terminal("up", "--no-import-check", folder=tmp_path) as running:
        running.await_text("its application can't be used: can't import tasks")
        assert running.process.poll() is None
