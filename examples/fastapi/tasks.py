"""Writes the report of a customer, month by month."""

import time
from pathlib import Path

from queue_core import INJECTED, App, Injected, Task

FOLDER = Path("reports")

app = App("towline.yaml")


@app.function(queue="reports", timeout="1m")
def report(customer: str, *, task: Injected[Task] = INJECTED) -> None:
    """Write the report into a file named after its task, and tell how far it is."""
    lines = [f"Report for {customer}\n"]
    for month in range(1, 13):
        time.sleep(0.2)  # in place of a slow query
        lines.append(f"month {month:2}: {len(customer) * month} EUR\n")
        task.progress(month / 12, f"month {month} of 12")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{task.name}.txt").write_text("".join(lines))
