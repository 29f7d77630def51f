"""The page about Cloud Tasks: what it shows runs as it stands, but for the addresses."""

import re
from pathlib import Path

import pytest
import yaml

from queue_core.config.settings import parse_queue_file
from queue_core.server.cloudtasks.failures import RpcStatus
from queue_core.service import QueueService
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ANY, QueueSpec
from tests.support.google.cloud_tasks import a_cloud_tasks_server

PAGE = (Path(__file__).parents[4] / "docs/reference/cloudtasks.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_programs_run_one_after_the_other() -> None:
    with a_cloud_tasks_server(MemoryStore()) as server:
        service = QueueService(server.store)
        service.run(lambda turn: turn.put_queue(QueueSpec("thumbs")))
        address = server.thread.grpc_address
        assert address is not None
        programs = _blocks("python")
        assert len(programs) == 3
        for program in programs:
            here = program.replace("http://127.0.0.1:7878", server.url).replace("127.0.0.1:7879", address)
            names: dict[str, object] = {}
            exec(here, names)
            if "channel" in names:
                names["channel"].close()  # type: ignore[attr-defined]
            elif "client" in names:
                names["client"].transport.close()  # type: ignore[attr-defined]
        stats = service.read(lambda turn: turn.stats("thumbs", ANY))
        assert (stats.added_total, stats.deleted_total, stats.ready) == (2, 1, 1)


@pytest.mark.parametrize("settings", _blocks("yaml"))
def test_the_settings_are_right(settings: str) -> None:
    parsed, mistakes = parse_queue_file(yaml.safe_load(settings))
    assert parsed is not None
    assert not mistakes


def test_every_code_has_its_row() -> None:
    rows = re.findall(r"([A-Z_]+) \((\d+)\)", PAGE)
    assert {(code.name, str(code.http_status)) for code in RpcStatus if code is not RpcStatus.INTERNAL} == set(rows)
