"""Type checkers know the arguments of a function wherever it is added: mypy finds each mistake, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

RIGHT = '''
import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

from queue_core import INJECTED, Added, App, Backoff, Function, Injected, NewTask, Retry, Task, Timeout

app = App("towline.yaml")


class Client:
    """Shared."""


@app.on_start
def client() -> Iterator[Client]:
    yield Client()


@app.on_stop
async def stop(client: Client) -> None: ...


@app.function(queue="thumbs", timeout="30s", retry=Backoff("1s", "5m", attempts=5), on={Timeout: Retry("1m")})
def resize(path: str, width: int = 200, *, client: Injected[Client] = INJECTED) -> int:
    return width


@app.function(queue="thumbs", tag="other")
async def fetch(url: str) -> NewTask:
    return resize.task(url)


@app.task(queue="thumbs")
def rest(task: Task, client: Client) -> None: ...


added: Added = resize.add("cat.jpg", width=400)
task: NewTask = resize.task("cat.jpg", 400)
width: int = resize("cat.jpg", client=Client())
moment = datetime(2030, 1, 1, tzinfo=UTC)
resize.with_(delay="10m", name="cat", headers={"trace": "1"}).with_(eta=moment, max_leases=3).add("cat.jpg", width=1)


async def main() -> Added:
    handed: NewTask = await fetch("http://example.org")
    print(handed, fetch.queue, fetch.tag)
    return await resize.with_(queue="other").add_async("cat.jpg")


def takes(function: Function[[str], object]) -> None:
    function.add("x")


asyncio.run(main())
'''
WRONG = [
    "resize.add()",
    "resize.add(3)",
    'resize.add("a", widht=3)',
    'resize.add("a", width="wide")',
    'resize.task("a", "wide")',
    'resize.with_(delay="1m").add(3)',
    'resize.with_(delay="1m").task("a", 1, 2)',
    'resize.with_(name=3).add("a")',
    'resize.with_(late=3).add("a")',
    'asyncio.run(resize.add_async("a", width="wide"))',
    "asyncio.run(resize.with_(name='a').add_async(3))",
    "resize(3)",
    'asyncio.run(fetch.add_async("a", "b"))',
    'text: str = resize("a")',
    'later: str = resize.add("a")',
    "@app.function()\ndef without(path: str) -> None: ...",
    "@app.function\ndef bare(path: str) -> None: ...",
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


def told(folder: Path, cache: Path, **texts: str) -> dict[str, list[int]]:
    """Return the lines of each program in which mypy finds an error."""
    programs = {name: folder / f"{name}.py" for name in texts}
    for name, program in programs.items():
        program.write_text(texts[name])
    arguments = [
        "--strict",
        "--no-incremental",
        "--config-file",
        "/dev/null",
        "--cache-dir",
        str(cache),
        "--follow-imports=silent",
    ]
    command = [sys.executable, "-m", "mypy", *arguments, *[program.name for program in programs.values()]]
    environment = {"MYPYPATH": str(ROOT), "PATH": ""}
    found = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode in (0, 1), found.stdout + found.stderr
    lines = [line.split(":") for line in found.stdout.splitlines() if ": error: " in line]
    assert {place for place, *_ in lines} <= {program.name for program in programs.values()}, found.stdout
    return {name: sorted({int(at) for place, at, *_ in lines if place == f"{name}.py"}) for name in texts}


def test_mypy_finds_each_wrong_argument_and_no_other(tmp_path: Path, cache: Path) -> None:
    text, places = RIGHT, []
    for mistake in WRONG:
        places.append(text.count("\n") + 1)
        text += mistake + "\n"
    found = told(tmp_path, cache, program=text)["program"]
    ends = [*places[1:], text.count("\n") + 1]
    missed = [
        one for one, first, end in zip(WRONG, places, ends, strict=True) if not any(first <= at < end for at in found)
    ]
    assert missed == []
    assert [at for at in found if at < places[0]] == []


def test_the_examples_are_strictly_typed_and_a_wrong_argument_in_one_is_found(tmp_path: Path, cache: Path) -> None:
    texts = {path.parent.name: path.read_text() for path in (ROOT / "examples").glob("*/tasks.py")}
    examples = {name: text for name, text in texts.items() if "from celery" not in text}  # Celery has no types
    wrong = examples["thumbnails"].replace("width=100", "width='wide'")
    assert wrong != examples["thumbnails"]
    found = told(tmp_path, cache, **examples, wrong=wrong)
    assert found.pop("wrong") == [wrong.count("\n")]
    assert found == {name: [] for name in examples}
