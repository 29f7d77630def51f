"""Two projects that kept the same address: neither changes the queues of the other."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from queue_core import App, InvalidSettingError
from queue_core.cli.serving import serve_options
from queue_core.cli.settings_file import load_queue_file
from queue_core.server.server import ServerThread
from queue_core.stores import open_store
from tests.support.commands import Commands

SETTINGS = "store: sqlite:///q.db\nqueues: {mail: {}}\nserver: {listen: '127.0.0.1:%d'}\n"


@pytest.fixture
def other(tmp_path_factory: pytest.TempPathFactory, towline: Commands) -> Iterator[Path]:
    """The folder of a project whose server has the address that this one's settings file names."""
    folder = tmp_path_factory.mktemp("other")
    file = folder / "towline.yaml"
    file.write_text(SETTINGS % 0)
    settings, directory = load_queue_file(file)
    store = open_store(f"sqlite:///{folder / 'q.db'}")
    server = ServerThread(store, replace(serve_options(settings, directory), port=0))
    port = int(server.start().rpartition(":")[2])
    for one in (file, towline.folder / "towline.yaml"):
        one.write_text(SETTINGS % port)
    yield folder
    server.stop()
    store.close()


@pytest.mark.parametrize("line", ["add mail hello", "purge mail --yes", "queues", "why mail"])
def test_a_command_calls_no_server_of_another_project(towline: Commands, other: Path, line: str) -> None:
    told = towline(*line.split())
    assert told.code == 78
    assert "another project's server answers at server.listen" in told.err
    assert "q.db" in told.err
    own = towline(*line.split(), "-f", str(other / "towline.yaml"))
    assert "another project's server" not in own.err


def test_an_application_adds_nothing_to_another_project(towline: Commands, other: Path) -> None:
    app = App(towline.folder / "towline.yaml")

    @app.function(queue="mail")
    def send(to: str) -> None: ...

    with pytest.raises(InvalidSettingError, match="another project's server answers"):
        send.add("me@example.org")
    assert towline("queues", "-f", str(other / "towline.yaml"), "--json").json is not None
