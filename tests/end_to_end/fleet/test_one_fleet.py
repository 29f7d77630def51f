"""One fleet from any listener: `serve`, `supervise` and `towline work` as three programs over one store."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.support.commands import CommandResult, Commands, program_environment
from tests.support.eventually import eventually
from tests.support.stores.engines import free_port
from tests.support.stores.stores import new_url

TASKS = """
from queue_core.worker.app import App

app = App()


@app.task(queue="mail", tag="send")
def send(number: int) -> None:
    pass


@app.task(queue="mail", tag="other")
def other(number: int) -> None:
    pass
"""


class ThreePrograms:
    """A folder with settings; its programs run until the end of the test."""

    def __init__(self, folder: Path, store: str, *, listens: bool, stack: ExitStack, towline: Commands) -> None:
        self.folder = folder
        self._towline = towline
        self.store = store
        self.port, self.listen = free_port(), f"127.0.0.1:{free_port()}"
        self.url = f"http://127.0.0.1:{self.port}"
        self._stack = stack
        folder.mkdir()
        (folder / "tasks.py").write_text(TASKS)
        pool = {"queue": "mail", "tags": ["send"], "app": "tasks:app", "slo": "5s", "workers": {"min": 1, "max": 1}}
        settings: dict[str, object] = {
            "store": store,
            "server": {"listen": f"127.0.0.1:{self.port}"},
            "supervisor": {"state_dir": str(folder / "state"), **({"listen": self.listen} if listens else {})},
            "queues": {"mail": {"max_leases": 3}},
            "pools": {"send": {**pool, "grace": "2s"}},
        }
        (folder / "towline.yaml").write_text(json.dumps(settings))

    def start(self, *words: str) -> None:
        with (self.folder / f"{words[0]}.log").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", *words],
                cwd=self.folder,
                env=program_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

        def end() -> None:
            process.terminate()
            process.wait(timeout=60)

        self._stack.callback(end)

    def start_all(self) -> None:
        self.start("serve")
        eventually(lambda: self.run("health", "--part", "queue").code == 0, seconds=60)
        self.start("supervise", "--no-import-check")
        self.start("work", "tasks:app", "--tag", "other")
        eventually(lambda: self.pools_at_work() == {"send", ""}, seconds=60)

    def pools_at_work(self) -> set[str]:
        found = self.page("/v1/present-workers")[1]
        return {one["pool"] for one in json.loads(found)["workers"]}

    def run(self, *words: str, at: str = "url") -> CommandResult:
        """Run a command in this process, in another folder, given the queue server's URL or the store."""
        return self._towline(*words, *(("--url", self.url) if at == "url" else ("--store", self.store)))

    def page(self, path: str) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path, headers={"accept": "text/html"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def text(self, path: str) -> str:
        status, html = self.page(path)
        assert status == 200, html
        return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html[html.index("<main") :]))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_the_queue_server_and_the_store_tell_the_same_as_the_supervisor(
    tmp_path: Path, engine: str, stack: ExitStack, towline: Commands
) -> None:
    store = new_url("postgres") if engine == "postgres" else f"sqlite:///{tmp_path}/one.db"
    programs = ThreePrograms(tmp_path / "a", store, listens=True, stack=stack, towline=towline)
    programs.start_all()
    eventually(lambda: programs.run("pools", "--json").code == 0, seconds=60)
    assert programs.run("add", "mail", "1", "--tag", "other").code == 0

    def finished() -> int:
        return sum(one["finished"] for one in json.loads(programs.run("workers", "--json").out)["unsupervised"])

    eventually(lambda: finished() == 1, seconds=60)
    for at in ("url",) if engine == "postgres" else ("url", "store"):
        workers = json.loads(programs.run("workers", "--json", at=at).out)
        assert workers["alive"] is True
        assert [one["pool"] for one in workers["workers"]] == ["send"]
        (beside,) = workers["unsupervised"]
        assert (beside["queues"], beside["finished"], bool(beside["host"])) == (["mail"], 1, True)
        table = programs.run("workers", at=at).out
        assert re.search(rf"{beside['worker']} +unsupervised", table), table
        assert list(json.loads(programs.run("pools", "--json", at=at).out)["pools"]) == ["send"]
        assert programs.run("why", "send", at=at).out.startswith("send: ")
        queue = programs.run("why", "mail", at=at).out
        assert "pool send works on" in queue
        assert f"unsupervised worker {beside['worker']}" in queue
        top = json.loads(programs.run("top", "--once", "--json", at=at).out)
        assert (list(top["pools"]), len(top["unsupervised"])) == (["send"], 1)
    assert "supervisor: leading" in programs.run("health").out
    overview, page = programs.text("/console/"), programs.text("/console/workers")
    for shown in (overview, page):
        assert beside["worker"] in shown
        assert "unsupervised" in shown
    assert "No supervisor runs" not in overview
    assert json.loads(programs.run("workers", "--json").out)["workers"][0]["worker"] in page
    assert "1 worker" in programs.text("/console/pools/send")
    assert "leads" in programs.text("/console/hosts")
    assert "No worker has failed" in programs.text("/console/deaths")


def test_where_the_supervisor_has_no_listener_each_place_says_where_it_runs(
    tmp_path: Path, stack: ExitStack, towline: Commands
) -> None:
    programs = ThreePrograms(
        tmp_path / "a", f"sqlite:///{tmp_path}/one.db", listens=False, stack=stack, towline=towline
    )
    programs.start_all()
    eventually(lambda: "supervisor: leading on " in programs.run("health").out, seconds=60)
    place = "This server hosts the queues only. The supervisor runs on "
    for path in ("/console/", "/console/workers"):
        shown = eventually(lambda path=path: place in (text := programs.text(path)) and text, seconds=60)
        assert "unsupervised" in shown
        assert "send-" in shown
    status, html = programs.page("/console/deaths")
    assert (status, place in html, "/v1/" in html) == (404, True, False)
    listed = programs.run("workers")
    assert listed.code == 0
    assert "unsupervised" in listed.out
    assert place in listed.out + listed.err
    for words in (("pools",), ("why", "send"), ("top", "--once")):
        told = programs.run(*words)
        assert told.code == 69
        assert place in " ".join(told.err.split())
    assert "pool send works on" in programs.run("why", "mail").out
