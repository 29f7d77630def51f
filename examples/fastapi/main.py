"""A web service: one request adds a task, another asks how it is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from fastapi.staticfiles import StaticFiles
from tasks import FOLDER, report

from queue_core import AsyncQueue, open_queues_async


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Keep one client for all requests, in the event loop that serves them."""
    async with await open_queues_async("http://127.0.0.1:7878") as queues:
        app.state.reports = queues.queue("reports")
        yield


FOLDER.mkdir(exist_ok=True)
app = FastAPI(lifespan=lifespan)
app.mount("/texts", StaticFiles(directory=FOLDER))


@app.post("/reports", status_code=202)
async def order_report(customer: str) -> dict[str, str]:
    """Add a task; once this has answered, the task is durable."""
    reports: AsyncQueue = app.state.reports
    (added,) = await reports.add(report.task(customer))
    return {"report": added.name}


@app.get("/reports/{name}")
async def show_report(name: str) -> dict[str, str]:
    """Tell the state of a task: ready, delayed, leased or dead while it is in its queue, done afterwards."""
    reports: AsyncQueue = app.state.reports
    for task in (await reports.peek(names=[name])).tasks:
        return {"state": task.state.name.lower(), "progress": task.progress.text if task.progress else ""}
    if not (await reports.history(names=name)).leases:
        raise HTTPException(404, f"no report {name}")
    return {"state": "done", "text": f"/texts/{name}.txt"}
