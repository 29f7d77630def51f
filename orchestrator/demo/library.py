"""The demo's work: read a module of the standard library and describe it. Knows nothing of queues."""

import ast
import io
import json
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

SHOWN_LINES: Final = 240
"""Source lines that a module's page shows."""
_NOT_THE_LIBRARY: Final = frozenset(
    {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "lib2to3", "turtledemo"}
)


@dataclass(frozen=True, slots=True)
class Definition:
    """A class or function of a module, with the first line of its docstring."""

    kind: str
    name: str
    line: int
    lines: int
    summary: str


@dataclass(frozen=True, slots=True)
class Module:
    """The description of one module."""

    name: str
    path: str
    size_bytes: int
    lines: int
    code_lines: int
    branches: int
    names: int
    imports: tuple[str, ...]
    definitions: tuple[Definition, ...]
    docstring: str

    def to_json(self) -> str:
        """Return the text kept between the two stages."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Module":
        """Parse the text of `to_json`."""
        data = json.loads(text)
        data["imports"] = tuple(data["imports"])
        data["definitions"] = tuple(Definition(**item) for item in data["definitions"])
        return cls(**data)


def find_modules(root: Path | None = None) -> list[tuple[str, Path]]:
    """Return every module of the standard library with its file, by name, without its tests."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        if _NOT_THE_LIBRARY.intersection(parts) or not all(part.isidentifier() for part in parts):
            continue
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return sorted(found)


def read_module(name: str, path: Path) -> Module:
    """Parse and compile one module. Raises `SyntaxError` or `OSError`."""
    raw = path.read_bytes()
    tree = ast.parse(raw, filename=path.name)
    compile(tree, path.name, "exec", dont_inherit=True)
    text = raw.decode(tokenize.detect_encoding(io.BytesIO(raw).readline)[0])
    lines = text.splitlines()
    nodes = list(ast.walk(tree))
    return Module(
        name,
        path.name,
        len(raw),
        len(lines),
        sum(1 for line in lines if line.strip() and not line.lstrip().startswith("#")),
        sum(isinstance(node, ast.If | ast.For | ast.While | ast.Try | ast.BoolOp) for node in nodes),
        len({node.id for node in nodes if isinstance(node, ast.Name)}),
        tuple(sorted(set(_imports(nodes, name, is_package=path.name == "__init__.py")))),
        tuple(_definitions(tree)),
        ast.get_docstring(tree) or "",
    )


def _imports(nodes: Iterable[ast.AST], name: str, *, is_package: bool) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".") if is_package else name.split(".")[:-1]
            base = parts[: len(parts) - node.level + 1] if node.level else []
            yield ".".join([*base, *([node.module] if node.module else [])])


def _definitions(tree: ast.Module) -> Iterator[Definition]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield _definition("class", node, node.name)
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and not inner.name.startswith("_"):
                    yield _definition("method", inner, f"{node.name}.{inner.name}")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield _definition("function", node, node.name)


def _definition(kind: str, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Definition:
    summary = (ast.get_docstring(node) or "").strip().partition("\n")[0]
    return Definition(kind, name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1, summary[:160])
