"""Handlers, as a user writes them."""

from pathlib import Path

from queue_core import App, Dead, NewTask, Retry, Task

app = App()


@app.task(queue="thumbs", tag="resize", on={ConnectionError: Retry(30)})
async def resize(task: Task) -> NewTask:
    if not task.payload:
        raise Dead("no picture")
    return NewTask(task.payload, tag="publish")


@app.task(queue="thumbs", tag="publish", batch=10)
def publish(tasks: list[Task]) -> None:
    with Path("published.txt").open("a") as file:
        for task in tasks:
            print(task.text, file=file)
