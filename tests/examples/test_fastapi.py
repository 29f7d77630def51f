"""The FastAPI example: a report is ordered, looked at while it is written, and survives its worker."""

import os
import signal
from pathlib import Path

import httpx

from tests.support.eventually import eventually
from tests.support.examples import a_copy_of
from tests.support.stores.engines import free_port


def test_a_report_is_ordered_and_looked_at_and_its_worker_may_be_killed(tmp_path: Path) -> None:
    port = free_port()
    with a_copy_of("fastapi", tmp_path) as example, httpx.Client(base_url=f"http://127.0.0.1:{port}") as browser:
        example.up()
        example.start("uvicorn", "main:app", "--port", str(port))

        def shown(path: str) -> dict[str, str]:
            try:
                return dict(browser.get(path).json())
            except httpx.ConnectError:
                return {}

        eventually(lambda: shown("/openapi.json"))
        ((worker, pid),) = eventually(example.worker_pids).items()
        with example.queues() as queues:
            eventually(
                lambda: [heard.waits for heard in queues.observe("reports", workers=[worker]).heard or ()] == [True]
            )
        os.kill(pid, signal.SIGSTOP)  # it leases, and can't be done before it is killed
        ordered = browser.post("/reports", params={"customer": "ada"})
        assert (ordered.status_code, ordered.json()) == (202, {"report": "_1"})
        eventually(lambda: shown("/reports/_1") == {"state": "leased", "progress": ""})
        example.kill_worker(worker)
        eventually(lambda: shown("/reports/_1").get("progress") or shown("/reports/_1").get("text"))
        eventually(lambda: shown("/reports/_1")["state"] == "done")
        assert browser.get(shown("/reports/_1")["text"]).text.startswith("Report for ada\nmonth  1: 3 EUR\n")
        with example.queues() as queues:
            outcomes = [lease.outcome for lease in queues.queue("reports").history(names="_1").leases]
        assert outcomes == ["deleted", "released"]
        assert browser.get("/reports/_2").status_code == 404
        assert browser.post("/reports").status_code == 422
