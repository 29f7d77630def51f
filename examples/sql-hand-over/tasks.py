"""Writes the letters that charged orders hand over to."""

from pathlib import Path

from queue_core import App, Task

app = App()


@app.task(queue="letters", tag="letter")
def write_letter(task: Task) -> None:
    """Append a line to `letters.txt`."""
    with Path("letters.txt").open("a") as letters:
        letters.write(f"Thank you for buying a {task.text}.\n")
