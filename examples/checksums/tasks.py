"""Writes the SHA-256 of files to a file of checksums."""

import hashlib
from pathlib import Path

from queue_core import App, Dead, Task

app = App()


@app.task(queue="files", tag="checksum")
def checksum(task: Task) -> None:
    """Append the checksum of the file that the task names to `checksums.txt`."""
    try:
        with Path(task.text).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise Dead(f"no such file: {task.text}") from error  # no retry can help
    with Path("checksums.txt").open("a") as checksums:
        checksums.write(f"{digest}  {task.text}\n")
