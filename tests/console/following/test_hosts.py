"""The supervisors of one store on one page: which leads, also after one was killed; and links to their consoles."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest

from orchestrator.runtimes import procfs
from queue_core.console.pages.hosts import console_of
from tests.support.commands import program_environment
from tests.support.eventually import eventually
from tests.support.stores.engines import free_port
from tests.support.stores.stores import new_url

POOL = {
    "queue": "thumbs",
    "app": "tests.support.fleet.recording_app:app",
    "slo": "5s",
    "workers": {"min": 0, "max": 1},
    "grace": "5s",
}


@dataclass
class UpHost:
    """A folder in which `towline up` runs over a store that others share."""

    folder: Path
    store: str
    port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.folder.mkdir()
        settings = {
            "store": self.store,
            "server": {"listen": f"127.0.0.1:{self.port}"},
            "supervisor": {"lead": "5s", "state_dir": str(self.folder / "state")},
            "queues": {"thumbs": {}},
            "pools": {"resize": POOL},
        }
        (self.folder / "towline.yaml").write_text(json.dumps(settings))
        with (self.folder / "log").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", "up"],
                cwd=self.folder,
                env=program_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def rows(self) -> dict[str, str]:
        """Return the text of each row of its page of hosts, by the port of the console in it."""
        with suppress(OSError):
            connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
            connection.request("GET", "/console/hosts", headers={"accept": "text/html"})
            page = connection.getresponse().read().decode()
            connection.close()
            rows = [re.sub(r"<[^>]+>", " ", row) for row in re.findall(r"<tr>.*?</tr>", page, re.DOTALL)[1:]]
            return {
                str(self.port) if "this one" in row else row.rpartition(":")[2][:5].strip("/ "): row for row in rows
            }
        return {}

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        assert not procfs.worker_processes(str(self.folder / "state"))


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[UpHost, UpHost]]:
    store = new_url("redis")
    with ExitStack() as stack:
        first, second = (UpHost(tmp_path / name, store, free_port()) for name in ("a", "b"))
        for host in (first, second):
            stack.callback(host.end)
            host.start()
        yield first, second


def test_one_console_shows_all_supervisors_and_who_leads_after_one_was_killed(hosts: tuple[UpHost, UpHost]) -> None:
    def leaders(seen_from: UpHost) -> list[str]:
        return [port for port, row in seen_from.rows().items() if " leads " in row]

    eventually(lambda: all(len(host.rows()) == 2 and len(leaders(host)) == 1 for host in hosts), seconds=40)
    assert leaders(hosts[0]) == leaders(hosts[1])
    killed, other = hosts if leaders(hosts[0]) == [str(hosts[0].port)] else hosts[::-1]
    assert str(killed.port) in other.rows()
    assert killed.process is not None
    killed.process.kill()
    eventually(lambda: leaders(other) == [str(other.port)], seconds=40)
    assert " led " in other.rows()[str(killed.port)], "it is listed until its registration ends, but leads no more"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        pytest.param("http://10.0.0.7:7777", "http://10.0.0.7:7777/console/", id="address"),
        pytest.param("https://queues.example.org/towline/", "https://queues.example.org/towline/console/", id="prefix"),
        pytest.param("unix:///run/towline.sock", "", id="socket"),
        pytest.param("", "", id="no listener"),
        pytest.param("javascript:alert(1)//x", "", id="script"),
        pytest.param("http://user@evil.example", "", id="another host than it seems"),
        pytest.param("http://[", "", id="no address"),
    ],
)
def test_only_an_address_of_the_web_is_a_link(url: str, address: str) -> None:
    assert console_of({"url": url}) == address
