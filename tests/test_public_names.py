"""Users import from the package roots: what is exported there is there, cheap to have, and all that documents need."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from queue_core import errors

ROOT = Path(__file__).parents[1]
PACKAGES = ("orchestrator", "queue_core")
DOORS = {"queue_core", "queue_core.django", "queue_core.telemetry", "queue_core.testing", "orchestrator"}
"""What users import from."""

INTERNAL = {"AppHooks", "Handler", "LeaseOffer"}
"""Classes in signatures by which a worker's own code uses an `App`."""


def _typed_names(package: str) -> dict[str, str]:
    """The names that type checkers see, by the module they come from."""
    tree = ast.parse((ROOT / package / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    found = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in found for alias in node.names}


@pytest.mark.parametrize("package", PACKAGES)
def test_what_type_checkers_see_is_what_a_program_gets(package: str) -> None:
    module = importlib.import_module(package)
    typed = _typed_names(package)
    assert sorted(typed) == sorted(module.__all__)
    assert set(module.__all__) <= set(dir(module))
    for name, home in typed.items():
        assert getattr(module, name) is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_is_that_of_a_module_which_would_take_its_place(package: str) -> None:
    beside = {path.stem for path in (ROOT / package).iterdir()}
    assert beside.isdisjoint(importlib.import_module(package).__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_an_error_that_says_so(package: str) -> None:
    with pytest.raises(AttributeError, match=f"'{package}' has no attribute 'Nothing'"):
        _ = importlib.import_module(package).Nothing


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_imports_nothing_else(package: str) -> None:
    program = f"import sys; known = set(sys.modules); import {package}; print(*set(sys.modules) - known)"
    told = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout.split() == [package]


def test_a_name_imports_what_it_needs_and_no_more() -> None:
    program = "import sys; from queue_core import App, NewTask; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy = {"apsw", "httptools", "pydantic", "starlette", "structlog", "urllib3", "uvicorn", "yaml"}
    assert heavy.isdisjoint(told.stdout.split())


def test_every_error_of_the_queue_is_exported() -> None:
    package = importlib.import_module("queue_core")
    ours = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert ours <= set(package.__all__)


@pytest.mark.parametrize("name", ["App", "AsyncQueue", "AsyncQueues", "NewTask", "Queue", "QueueSpec", "Queues"])
def test_a_value_that_a_public_method_takes_or_returns_is_exported(name: str) -> None:
    package = importlib.import_module("queue_core")
    public = getattr(package, name)
    methods = [call for verb, call in inspect.getmembers(public, callable) if not verb.startswith("_")]
    hints = [str(hint) for method in methods for hint in inspect.get_annotations(method).values()]
    hints += [str(hint) for hint in inspect.get_annotations(public).values()]
    named = set(re.findall(r"queue_core[\w.]*\.([A-Z][a-z]\w+)", " ".join(hints)))
    assert named - INTERNAL <= set(package.__all__)


def _texts_for_users() -> list[Path]:
    documents = [path for path in (ROOT / "docs").rglob("*.md") if "adr" not in path.parts]
    return [
        ROOT / "README.md",
        ROOT / "deploy" / "tasks.py",
        ROOT / "orchestrator" / "cli" / "commands" / "init.py",
        *documents,
    ]


@pytest.mark.parametrize("path", _texts_for_users(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_text_for_users_imports_from_the_roots_only(path: Path) -> None:
    text = path.read_text()
    if path.suffix == ".py" and path.name == "init.py":
        text = text[text.index("PROGRAM") : text.index("@command")]  # what it writes
    found = re.findall(r"^(?:from|import) ((?:queue_core|orchestrator)[\w.]*)(?: import (.+))?$", text, re.MULTILINE)
    for module, names in found:
        assert module in DOORS, path
        public = importlib.import_module(module).__all__
        assert set(re.findall(r"\w+", names)) <= set(public), path


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
