"""`towline serve` with the queues of a queue.yaml, for programs on an SDK."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.store import Store
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from queue_core.verbs.roles import Role
from tests.support.commands import program_environment, run_program
from tests.support.eventually import eventually
from tests.support.servers import a_server

START_SECONDS = 30.0
STOP_SECONDS = 30.0
TOKEN_VARIABLE = "TOWLINE_TEST_TOKEN"


@dataclass(frozen=True, slots=True)
class SdkServer:
    """The address of the API."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@contextmanager
def serving(folder: Path, *, queue_yaml: str, ticket: str | None = None) -> Iterator[SdkServer]:
    """Serve the queues of `queue_yaml` from a new SQLite file.

    Args:
        folder: an empty folder for the files.
        ticket: the ticket clients must send; None accepts any.
    """
    tokens = f"\n  tokens: [{{role: admin, token_env: {TOKEN_VARIABLE}}}]" if ticket else ""
    (folder / "towline.yaml").write_text(
        f'store: "sqlite:///{folder}/queue.db"\nserver:\n  listen: 127.0.0.1:0{tokens}\n'
    )
    (folder / "queue.yaml").write_text(queue_yaml)
    environment = program_environment() | ({TOKEN_VARIABLE: ticket} if ticket else {})
    log = folder / "serve.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "serve", "--file", "towline.yaml"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        served = SdkServer("127.0.0.1", eventually(lambda: _port(process, log), seconds=START_SECONDS))
        applied = run_program(
            *("queues", "apply", "queue.yaml", "--url", served.url, "--yes"),
            folder=folder,
            environment={"TOWLINE_TOKEN": ticket} if ticket else {},
        )
        assert applied.code == 0, applied.err
        yield served
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def serving_here(store: Store, queues: Iterable[QueueSpec], *, ticket: str | None = None) -> Iterator[SdkServer]:
    """Run the same server in a thread of this process, which starts ten times faster."""
    tokens = (AccessToken(Role.ADMIN, ticket),) if ticket else ()
    with a_server(store, ServeOptions(tokens=tokens)) as running:
        for queue in queues:
            QueueService(store).run(lambda turn, queue=queue: turn.put_queue(queue))
        yield SdkServer("127.0.0.1", running.port)


def _port(process: "subprocess.Popen[bytes]", log: Path) -> int | None:
    assert process.poll() is None, log.read_text()
    found = re.search(r'"url":"http://127\.0\.0\.1:([0-9]+)"', log.read_text())
    return int(found[1]) if found else None


def sdk_environment(**settings: str) -> dict[str, str]:
    """Return the environment of a program on an SDK: `settings`, and no other App Engine variables."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("API_", "GAE_", "GOOGLE_", "GO"))}
    return ours | settings
