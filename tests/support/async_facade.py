"""`python -m tests.support.async_facade`: write the coroutines of all verbs, from the facades that a program calls.

What waits for tasks, and what is no verb, is written by hand in `client/asynchronous/client.py`.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
ASYNC: Final = ROOT / "queue_core" / "client" / "asynchronous"
SOURCES: Final = {
    ASYNC / "facade.py": ("queue_core/client/queue.py", {"Queue": "one queue", "Queues": "all queues of a store"}),
    ASYNC / "schedules.py": ("queue_core/client/schedules.py", {"Schedules": "the schedules of a store"}),
}
"""The modules that are written, and of which protocols of which module."""
BY_HAND: Final = frozenset({"add", "lease", "exchange", "wait_ready", "queue", "close", "name", "schedules"})
INTRODUCTION: Final = '''\
"""The verbs of {classes} as coroutines.

Written by `python -m tests.support.async_facade`: edit {source} instead, and run it again.
"""
'''


def written(module: Path) -> str:
    """Return the text of a module of these."""
    source, classes = SOURCES[module]
    tree = ast.parse((ROOT / source).read_text())
    imports = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    for_types = [ast.unparse(node) for node in tree.body if isinstance(node, ast.If)]
    lines = [
        INTRODUCTION.format(classes=" and ".join(f"`{one}`" for one in classes), source=source),
        "from collections.abc import Callable",
        "from typing import TypeVar",
        "from queue_core.client.asynchronous.calls import ThreadedCalls",
        *imports,
        f"from {source.removesuffix('.py').replace('/', '.')} import {', '.join(_defined(tree))}",
        *for_types,
        'T = TypeVar("T")',
    ]
    found = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for name, what in classes.items():
        lines += _mirror(found[name], what)
    return _formatted("\n".join(lines), module)


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def _mirror(protocol: ast.ClassDef, what: str) -> Iterator[str]:
    name = protocol.name
    yield f"class Async{name}Verbs:"
    yield f'    """The verbs of {what} that do not wait: see `{name}`."""'
    yield f"    def __init__(self, calls: ThreadedCalls, find: Callable[[], {name}]) -> None:"
    yield "        self._calls = calls"
    yield "        self._find = find"
    yield f"    async def _call(self, make: Callable[[{name}], T]) -> T:"
    yield "        return await self._calls.run(lambda: make(self._find()))"
    for node in protocol.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name not in BY_HAND:
            assert node.returns is not None
            given = [one.arg for one in node.args.args[1:]] + [f"{one.arg}={one.arg}" for one in node.args.kwonlyargs]
            call = f"await self._call(lambda it: it.{node.name}({', '.join(given)}))"
            returns = ast.unparse(node.returns)
            yield f"    async def {node.name}({ast.unparse(node.args)}) -> {returns}:"
            yield f'        """See `{name}.{node.name}`."""'
            yield f"        {'' if returns == 'None' else 'return '}{call}"


def _formatted(text: str, module: Path) -> str:
    for arguments in (["check", "--fix", "--quiet", "--exit-zero"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(module), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


if __name__ == "__main__":
    for one in SOURCES:
        one.write_text(written(one))
