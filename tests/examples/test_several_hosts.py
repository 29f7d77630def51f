"""Several hosts: two folders on one store; one leads, and the other takes over when it is killed."""

import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import yaml

from queue_core import NewTask, open_queues
from tests.support.eventually import eventually
from tests.support.examples import EXAMPLES, Example, a_copy_of, answers
from tests.support.fleet.deployed import Compose, compose_program
from tests.support.stores.engine_process import EngineUnavailableError
from tests.support.stores.engines import free_port
from tests.support.stores.stores import new_url

FOLDER = EXAMPLES / "several-hosts"
HOSTS = ("host-1", "host-2")


def leaders(url: str) -> list[bool]:
    """Return which of the store's supervisors leads, as one of their servers tells."""
    told = httpx.get(f"{url}/v1/supervisors").json()["supervisors"]
    return [one["leads"] for one in sorted(told, key=lambda one: one["url"] != url)]


def is_done(example: Example, count: int) -> bool:
    notes = example.folder / "notes.txt"
    return notes.exists() and notes.read_text().count("\n") == count


def test_another_host_goes_on_when_the_one_that_leads_is_killed(tmp_path: Path) -> None:
    with a_copy_of("several-hosts", tmp_path, store=new_url("postgresql")) as example:
        listen = f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "orchestrator", "up"]
        first = example.start(*command)
        eventually(lambda: answers(f"{example.url}/v1/supervisor/leader"))
        example.start(*command, TOWLINE_STATE_DIR=".towline-2", TOWLINE_LISTEN=listen)
        eventually(lambda: answers(f"http://{listen}/v1/supervisor/readyz"))
        eventually(lambda: leaders(f"http://{listen}") == [False, True])
        assert answers(f"http://{listen}/console/")
        with example.queues() as queues:
            queues.queue("notes").add([NewTask(b"note", tag="note")] * 3)
            eventually(lambda: is_done(example, 3))
        assert (bool(example.worker_pids()), example.worker_pids(".towline-2")) == (True, {})
        first.kill()
        first.wait()
        eventually(lambda: answers(f"http://{listen}/v1/supervisor/leader"))
        eventually(lambda: example.worker_pids(".towline-2"))
        with closing(open_queues(f"http://{listen}")) as queues:
            queues.queue("notes").add(NewTask(b"note", tag="note"))
        eventually(lambda: is_done(example, 4))


def test_the_compose_file_is_taken_by_compose_and_has_the_same_hosts(tmp_path: Path) -> None:
    folder = tmp_path / "several-hosts"
    folder.mkdir()
    written = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    assert [name for name, service in written["services"].items() if "towline" in service["image"]] == list(HOSTS)
    here, there = (yaml.safe_load((FOLDER / name).read_text()) for name in ("towline.yaml", "compose.towline.yaml"))
    assert (here["pools"], here["queues"]) == (there["pools"], there["queues"])
    try:
        program = compose_program()
    except EngineUnavailableError as error:
        pytest.skip(str(error))
    shown = yaml.safe_load(Compose(program, "several-hosts", {}, file=FOLDER / "compose.yaml")("config"))
    assert {shown["services"][name]["hostname"] for name in HOSTS} == set(HOSTS)
    assert all(shown["services"][name]["read_only"] for name in HOSTS)
