"""A package that is not installed: whoever needs it learns which extra has it, at every door, and of no bug."""

import os
import sys
from pathlib import Path

import pytest

from queue_core.process.extras import PACKAGES, needs_extra
from tests.support.built_packages import run_apart
from tests.support.commands import ROOT

CLI = "from orchestrator.cli import main; sys.exit(main(sys.argv[1:]))"
DJANGO = "import queue_core.django as towline; towline.Backend"
SETTINGS = {
    "postgres": "store: postgresql://127.0.0.1:1/x\nqueues: {q: {}}\n",
    "redis": "store: redis://127.0.0.1:1/0\nqueues: {q: {}}\n",
    "grpc": "store: 'memory:'\nserver: {listen: 'unix:s.sock', cloud_tasks: {grpc: '127.0.0.1:0'}}\nqueues: {q: {}}\n",
}


def without(extra: str, folder: Path, program: str, *arguments: str, **variables: str) -> tuple[int, str]:
    """Run a program that finds no package of an extra; return its exit code and what it said."""
    hidden = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in PACKAGES[extra])
    path = os.pathsep.join((str(ROOT), str(folder)))
    command = [sys.executable, "-c", hidden + program, *arguments]
    done = run_apart(command, folder=folder, PYTHONPATH=path, **variables)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("extra", "program", "arguments"),
    [
        pytest.param("postgres", CLI, ["queues", "--store", "postgresql://127.0.0.1:1/x"], id="postgres, an option"),
        pytest.param("redis", CLI, ["queues", "--store", "redis://127.0.0.1:1/0"], id="redis, an option"),
        pytest.param("postgres", CLI, ["serve"], id="postgres, the settings"),
        pytest.param("redis", CLI, ["serve"], id="redis, the settings"),
        pytest.param(
            "django", CLI, ["work", "queue_core.django:app", "--store", "sqlite:///q.db"], id="django, a worker"
        ),
        pytest.param("django", DJANGO, [], id="django, its settings"),
        pytest.param("otel", "import queue_core.telemetry as t; t.instrument()", [], id="otel, a program"),
        pytest.param(
            "redis", "import queue_core; queue_core.App('redis://127.0.0.1:1/0').queue('q').stats()", [], id="an app"
        ),
        pytest.param("postgres", "import queue_core; queue_core.open_queues('postgres://h/x')", [], id="a program"),
    ],
)
def test_a_missing_package_names_its_extra(extra: str, program: str, arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "towline.yaml").write_text(SETTINGS.get(extra, "queues: {q: {}}\n"))
    code, said = without(extra, tmp_path, program, *arguments)
    assert code != 0
    assert f"pip install 'towline[{extra}]'" in said
    assert "bug in Towline" not in said


def test_a_package_that_is_of_no_extra_is_not_taken_for_one() -> None:
    with pytest.raises(ModuleNotFoundError, match="sqlparse"), needs_extra("django", "a test"):
        raise ModuleNotFoundError("No module named 'sqlparse'", name="sqlparse")
    with pytest.raises(ImportError, match="cannot import"), needs_extra("django", "a test"):
        raise ImportError("cannot import name 'x' from 'django'", name="django")
