"""Counts the words of books: one stage takes them apart, the next counts page by page."""

import json
from pathlib import Path

from queue_core import App, NewTask, Task

LINES_PER_PAGE = 40

app = App()


@app.task(queue="books", tag="read")
def read(task: Task) -> list[NewTask]:
    """Return a task for each page of the book that the task names."""
    lines = Path(task.text).read_text().splitlines()
    pages = [lines[first : first + LINES_PER_PAGE] for first in range(0, len(lines), LINES_PER_PAGE)]
    return [
        NewTask(json.dumps({"page": f"{task.text}:{number}", "lines": page}).encode(), queue="pages", tag="count")
        for number, page in enumerate(pages, start=1)
    ]


@app.task(queue="pages", tag="count")
def count(task: Task) -> None:
    """Append the number of words of one page to `counts.txt`."""
    page = json.loads(task.text)
    words = sum(len(line.split()) for line in page["lines"])
    with Path("counts.txt").open("a") as counts:
        counts.write(f"{words:6} {page['page']}\n")
