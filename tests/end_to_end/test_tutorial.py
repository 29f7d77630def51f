"""`python3 -m tests.tutorial` types a page as a reader would, and finds what is not as the page says.

Here it types into a shell of this host, which is not bare.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.docs.blocks import read_page
from tests.support.commands import program_environment
from tests.tutorial.bare_debian import SHELL
from tests.tutorial.typist import PageFailedError, Typist, headings_of

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:towline.sock"}
queues: {jobs: {}}
pools:
  lines: {queue: jobs, app: "tasks:app", slo: 5s, workers: {min: 0, max: 1}}
"""
PROGRAM = """\
from queue_core import App

app = App("towline.yaml")


@app.function(queue="jobs")
def show(text: str) -> None:
    print(f"it says {text}")
"""
PAGE = f"""\
# A page

## 1. Begin

```yaml title="towline.yaml"
{SETTINGS}```

```python title="tasks.py"
{PROGRAM}```

```console
$ towline up
...
Workers' output appears here and in .towline/workers; Ctrl-C lets them finish.
```

## 2. Look

```console
$ cd FOLDER
$ towline add jobs --tag show '{{"text": "hello"}}'
...
$ towline why nothing  # exits 66
```

```text
12:04:31  lines-7f3k2q | it says hello
```

<!-- run: until ": done" -->
```console
$ towline why _1
jobs/_1, tag show: done 0.4 s ago by lines-7f3k2q; it waited 0.2 s and took 3 ms
...
```

```console
Ctrl-C
Stopped. 1 done, 0 dead, 0 still wait in sqlite:///queue.db.
```
"""


def shell(folder: Path) -> list[str]:
    """Return the command of a shell that begins in a folder, and finds `towline`."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    towline = programs / "towline"
    towline.write_text(f'#!/bin/sh\nexec {sys.executable} -m orchestrator "$@"\n')
    towline.chmod(0o755)
    variables = program_environment() | {"PATH": f"{programs}:{os.environ['PATH']}", "TERM": "dumb"}
    return ["env", "-i", f"--chdir={folder}", *(f"{name}={text}" for name, text in variables.items()), *SHELL]


def type_page(text: str, folder: Path) -> Sequence[str]:
    """Type a page in a folder; return the headings of the parts that were done."""
    text = text.replace("FOLDER", str(folder))
    with Typist(read_page(Path("page.md"), text), shell(folder), _save) as typist:
        return [progress.heading for progress in typist.work(headings_of(text))]


def _save(path: str, text: str) -> None:
    Path(path).write_text(text)


def test_a_page_is_typed_into_two_terminals(tmp_path: Path) -> None:
    assert type_page(PAGE, tmp_path) == ["1. Begin", "2. Look"]


@pytest.mark.parametrize(
    ("shown", "came"),
    [
        ("$ echo one\ntwo\n", "one"),
        ("$ false\n", "exit code 1"),
        ("$ true  # exits 3\n", "exit code 0"),
        ("$ echo one\n$ seq 2\n1\n2\n3\n", "2"),
    ],
)
def test_what_is_not_as_the_page_says_is_found(shown: str, came: str, tmp_path: Path) -> None:
    with pytest.raises(PageFailedError, match=r"page\.md:\d") as failed:
        type_page(f"# A page\n\n## 1. Only\n\n```console\n{shown}```\n", tmp_path)
    assert came in str(failed.value).partition("--- the page shows:")[0]


def test_a_comment_in_a_block_is_no_heading() -> None:
    assert headings_of("# Title\n\n## One\n\n```sh\n## no\n```\n\n## Two\n") == [(3, "One"), (9, "Two")]
