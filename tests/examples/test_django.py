"""The Django example: an order and its receipt are one transaction, on SQLite as it stands and on PostgreSQL."""

import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from queue_core import open_queue
from tests.support.eventually import eventually
from tests.support.examples import EXAMPLES, a_copy_of
from tests.support.stores.engines import free_port
from tests.support.stores.stores import new_url

EXPIRED = {"item": "pen", "card": "expired"}
ORDERING = """\
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
import django
django.setup()
from django.test import Client
client = Client()
print([client.post("/orders/", order).status_code for order in ({"item": "pen", "card": "expired"}, {"item": "book"})])
"""


def test_an_order_gets_its_receipt_once_and_one_that_is_rolled_back_none(tmp_path: Path) -> None:
    port = free_port()
    with a_copy_of("django", tmp_path) as example, httpx.Client(base_url=f"http://127.0.0.1:{port}") as browser:
        example.run(sys.executable, "manage.py", "migrate")
        assert "No changes detected" in example.run(sys.executable, "manage.py", "makemigrations", "--check")
        example.start(sys.executable, "manage.py", "runserver", "--noreload", str(port))
        example.up()

        def status(path: str) -> int:
            try:
                return browser.get(path).status_code
            except httpx.ConnectError:
                return 0

        assert eventually(lambda: status("/orders/1/")) == 404
        assert browser.post("/orders/", data=EXPIRED).status_code == 402
        for worker in example.worker_pids():
            example.kill_worker(worker)
        assert browser.post("/orders/", data={"item": "book"}).json() == {"order": 1}
        eventually(lambda: browser.get("/orders/1/").json() == {"item": "book", "receipts": 1})
        with example.queues() as queues:
            stats = queues.queue("default").stats
            eventually(lambda: stats().deleted_total == 1)
            assert stats().added_total == 1


def test_in_the_same_postgresql_a_rollback_takes_the_task_back(tmp_path: Path) -> None:
    url = new_url("postgresql")
    parts = urlsplit(url)
    database = {"NAME": parts.path[1:], "USER": parts.username, "HOST": parts.hostname, "PORT": parts.port}
    page = (EXAMPLES / "django" / "README.md").read_text()
    removed, added = (re.findall(rf"^\{sign}( *[\w\"].*)$", page, re.MULTILINE) for sign in "-+")
    with a_copy_of("django", tmp_path, store=url) as example:
        settings, project = example.folder / "shop" / "settings.py", example.folder / "towline.yaml"
        settings.write_text((EXAMPLES / "django" / "shop" / "settings.py").read_text())
        for before, after in zip(removed, added, strict=True):
            file = next(path for path in (settings, project) if f"{before}\n" in path.read_text())
            ours = after.replace('"NAME": "shop"', repr(database)[1:-1]).replace("postgresql:///shop", url)
            file.write_text(file.read_text().replace(f"{before}\n", f"{ours}\n"))
        example.run(sys.executable, "manage.py", "migrate")
        assert example.run(sys.executable, "-c", ORDERING) == "[402, 201]\n"
        queue = open_queue(url, "default")
        (task,) = queue.peek(payload_bytes=1000).tasks
        queue.close()
        assert (task.tag, b"[2]" in task.payload) == ("orders.tasks.send_receipt", True)
        assert example.towline("check").code == 0
