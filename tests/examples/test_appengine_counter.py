"""App Engine's counter: clicks of one counter are leased by tag and written once, also by the worker after a kill."""

import sys
from pathlib import Path

import httpx

from tests.support.eventually import eventually
from tests.support.examples import a_copy_of
from tests.support.stores.engines import free_port


def test_every_click_is_counted_and_many_at_once(tmp_path: Path) -> None:
    port = free_port()
    with a_copy_of("appengine-counter", tmp_path) as example, httpx.Client(base_url=f"http://127.0.0.1:{port}") as web:
        example.up()
        example.start(sys.executable, "main.py", str(port))
        eventually(lambda: f"http://127.0.0.1:{port}/" in (example.folder / "log").read_text())
        eventually((example.folder / "counters.db").exists)
        for worker in example.worker_pids():
            example.kill_worker(worker)
        for name in ("cat", "cat", "dog", "cat"):
            assert web.post(f"/{name}").status_code == 204
        eventually(lambda: web.get("/").json() == {"cat": 3, "dog": 1})
        with example.queues() as queues:
            eventually(lambda: queues.queue("clicks").stats().deleted_total == 4)
            leases = queues.queue("clicks").history().leases
        assert {lease.outcome for lease in leases} == {"deleted"}
        writes = [line for line in example.towline("logs", "counters").out.splitlines() if " more" in line]
        assert 2 <= len(writes) <= 4
