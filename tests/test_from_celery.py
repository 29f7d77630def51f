"""What the page on coming from Celery shows runs as it stands there: its app, its commands, its settings."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from orchestrator.config.pools import PoolSpec
from orchestrator.settings_file import parse
from tests.support.commands import ROOT, program_environment
from tests.support.eventually import eventually
from tests.support.stores import engines
from tests.support.stores.engine_process import EngineUnavailableError

PAGE = (ROOT / "docs/from/celery.md").read_text()
REDIS, SERVER = "127.0.0.1:6379", "127.0.0.1:7878"
SECONDS = 60.0


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


class Reader:
    """A reader of the page: types its commands in one folder, with addresses of the test's own."""

    def __init__(self, folder: Path, addresses: dict[str, str]) -> None:
        self.folder = folder
        self.addresses = addresses
        self.running: list[subprocess.Popen[bytes]] = []

    def text(self, text: str) -> str:
        for shown, own in self.addresses.items():
            text = text.replace(shown, own)
        return text

    def type(self, line: str) -> "subprocess.CompletedProcess[bytes] | None":
        """Run a command to its end, or start one that goes on and wait until it is ready."""
        command, ampersand, _ = self.text(line).partition(" &")
        arguments = shlex.split(command)
        words = {"towline": [sys.executable, "-m", "orchestrator"], "python": [sys.executable]}
        arguments[:1] = words.get(arguments[0], [sys.executable, "-m", arguments[0]])
        environment = {**program_environment(), "TOWLINE_URL": f"http://{self.addresses[SERVER]}"}
        if not ampersand:
            return subprocess.run(
                arguments, cwd=self.folder, env=environment, capture_output=True, timeout=SECONDS, check=False
            )
        log = self.folder / f"log-{len(self.running)}"
        with log.open("wb") as output:
            self.running.append(
                subprocess.Popen(arguments, cwd=self.folder, env=environment, stdout=output, stderr=output)
            )
        eventually(lambda: b" ready." in log.read_bytes() or b"server.started" in log.read_bytes())
        return None


@contextmanager
def a_reader(folder: Path) -> Iterator[Reader]:
    try:
        with engines.redis(folder) as redis:
            addresses = {REDIS: f"127.0.0.1:{redis.port}", SERVER: f"127.0.0.1:{engines.free_port()}"}
            reader = Reader(folder, addresses)
            try:
                yield reader
            finally:
                for process in reversed(reader.running):
                    process.terminate()
                for process in reader.running:
                    process.wait(SECONDS)
    except EngineUnavailableError as error:
        pytest.skip(str(error))


def test_the_page_can_be_followed_from_top_to_bottom(tmp_path: Path) -> None:
    app, lines = blocks("python")
    look, moved, bridged = ([line[2:] for line in block.splitlines()] for block in blocks("console"))
    with a_reader(tmp_path) as reader:
        program = tmp_path / "shop.py"
        program.write_text(reader.text(app).replace("file:///tmp", f"file://{tmp_path}"))
        (doctor,) = look
        told = reader.type(doctor)
        assert told is not None and b"task_acks_late = True" in told.stdout, told
        before = reader.type('python -c "import shop; shop.add.delay(20, 22)"')
        assert before is not None and before.returncode == 0, before
        program.write_text(program.read_text() + reader.text(lines))
        serve, *rest = moved
        port = reader.addresses[SERVER]
        reader.type(serve.replace(" &", f" --listen {port} &"))
        answers = {line: reader.type(line) for line in [*rest, *bridged]}
        for line, answer in answers.items():
            assert answer is None or answer.returncode == 0, (line, answer)
        (result,) = [answer.stdout for line, answer in answers.items() if answer and line.startswith("python")]
        assert result == b"3\n"
        (bridge,) = [answer.stderr for line, answer in answers.items() if answer and line in bridged]
        assert b"1 message moved" in bridge
        results = lambda: [one.read_text() for one in tmp_path.glob("celery-task-meta-*")]  # noqa: E731
        eventually(lambda: any('"result": 42' in text for text in results()))


def test_its_settings_are_valid_once_their_keys_are_there() -> None:
    for text in blocks("yaml"):
        keys = {key for pool in yaml.safe_load(text)["pools"].values() for key in pool}
        if keys <= set(PoolSpec.model_fields):
            assert parse(text, name="towline.yaml", directory=ROOT).pools
        else:
            pytest.skip(f"pools have no {', '.join(sorted(keys - set(PoolSpec.model_fields)))} yet")


def test_every_setting_of_its_table_is_one_of_celery() -> None:
    import celery.app.defaults as defaults

    section = PAGE.partition("## Settings that lose tasks")[2].partition("\n## ")[0]
    names = re.findall(r"^\| `([a-z_]+)[`.]", section, re.MULTILINE)
    assert len(names) == 8
    assert set(names) <= {name for name, _ in defaults.flatten(defaults.NAMESPACES)}
