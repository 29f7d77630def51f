"""A supervisor's listener with a token for each role, and the state directory in which its orders are written."""

import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

from orchestrator.config.overrides import NO_OVERRIDES, Moment, Overrides
from orchestrator.fleet.workers import Worker
from orchestrator.http_api.listener import FleetListener
from orchestrator.http_api.paths import fleet_paths
from orchestrator.runtimes.procfs import boot
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.snapshot import WallTime, snapshot_of
from orchestrator.supervisor.view import Phase
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.verbs.roles import Role
from tests.support.fleet.fleet_builders import a_fleet, a_pool
from tests.support.fleet.fleet_views import a_heartbeat, a_running_pool, a_view

Json = dict[str, object]
SECRETS: Final = {role: f"{role.name}-secret-0123456789" for role in Role}


class OrderDesk:
    """A supervisor's listener with a token for each role, and its state directory."""

    def __init__(self, folder: Path, *, phase: Phase = "leading") -> None:
        self.files = StateDir(folder / "state")
        self.files.path.mkdir()
        pool = self.pool = a_running_pool(
            a_pool(most=8, schedule=[{"cron": "0 9 * * *", "for": "1h", "workers": {"max": 20}}])
        )
        heartbeat, self.clock = a_heartbeat(a_view(pool, phase=phase))
        tokens = (
            *(AccessToken(role, secret) for role, secret in SECRETS.items()),
            AccessToken(Role.OPERATOR, "ops-secret-0123456789", "ops@example.com"),
        )
        self.listener = FleetListener(
            ServeOptions(port=0, tokens=tokens), fleet_paths(heartbeat, self.clock, files=self.files)
        )
        self.listener.start()

    def publish(self, *workers: Worker, pool: str = "resize") -> None:
        """Publish these workers of a pool, as the supervisor does."""
        self.pool.fleet = a_fleet(*workers, pool=pool)
        wall = WallTime(wall_seconds=self.clock.wall_seconds(), monotonic=self.clock.monotonic())
        about: Json = {"pid": 1, "phase": "leading", "shown_at": self.clock.wall_seconds(), "boot": "b"}
        self.files.write_snapshot({**about, **snapshot_of([self.pool], wall=wall)})

    def order(self, path: str, body: Json, *, secret: str = SECRETS[Role.OPERATOR]) -> tuple[int, Json]:
        return self.ask("POST", path, body, secret=secret)

    def ask(self, method: str, path: str, body: Json | None, *, secret: str) -> tuple[int, Json]:
        connection = HTTPConnection(self.listener.url.removeprefix("http://"), timeout=10)
        headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        found = json.loads(answer.read())
        connection.close()
        return answer.status, found

    def overrides(self) -> Overrides:
        now = Moment(self.clock.wall_seconds(), self.clock.monotonic(), boot())
        return self.files.read_overrides().get("resize", NO_OVERRIDES).in_force(now)
