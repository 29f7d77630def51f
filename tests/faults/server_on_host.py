"""`towline serve` as a process on a host: killed, restarted at the same address; it requires a token."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.support.netns import NetnsHost

PORT = 7878
START_SECONDS = 60.0
POLL_SECONDS = 0.02
TOKEN_VARIABLE = "FAULTS_TOKEN"
STARTED = "server.started"
REPOSITORY = Path(__file__).parents[2]


class ServerOnHost:
    """One server's address, token and process.

    Args:
        store: the URL of its store, as its host reaches it.
        token: the token it requires.
    """

    def __init__(self, host: NetnsHost, folder: Path, store: str, *, token: str) -> None:
        self.url = f"http://{host.address}:{PORT}"
        self._token = token
        self._host = host
        self._home = folder / host.namespace
        self._home.mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        settings = {
            "store": store,
            "server": {
                "listen": f"{host.address}:{PORT}",
                "tokens": [{"role": "admin", "token_env": TOKEN_VARIABLE}],
            },
            "lifecycle": "off",
        }
        (self._home / "towline.yaml").write_text(json.dumps(settings))

    @property
    def log(self) -> Path:
        """Return all its output."""
        return self._home / "server.log"

    def start(self) -> None:
        """Start it and wait until it answers. Raises `TimeoutError`."""
        starts = self._starts()
        command = [sys.executable, "-m", "orchestrator", "serve", "--file", "towline.yaml", "--json"]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._host.command(command),
                cwd=self._home,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), TOKEN_VARIABLE: self._token},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + START_SECONDS
        while self._starts() == starts:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"the server at {self.url} did not start: {self.log.read_text()[-600:]}")
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """SIGKILL and reap it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _starts(self) -> int:
        return self.log.read_text().count(STARTED) if self.log.exists() else 0
