# ruff: noqa: INP001  an example beside its settings, not a package
"""The handlers of deploy/towline.yaml."""

import hashlib
from pathlib import Path

from queue_core import App, Dead, Task

app = App()


@app.task(queue="files", tag="checksum")
def checksum(task: Task) -> None:
    """The SHA-256 of a file; no retry can help with a file that is not there."""
    try:
        with Path(task.text).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise Dead(f"no such file: {task.text}") from error
    print(digest, task.text)  # noqa: T201  what the example is for


@app.task(queue="files")
def size(task: Task) -> None:
    """The size of a file, for tasks without a tag."""
    print(Path(task.text).stat().st_size, task.text)  # noqa: T201
