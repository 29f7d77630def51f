"""Pages of a supervisor: a pool with the orders in force, how a worker ended, the settings and what is wrong there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.http_api.listener import FleetListener
from orchestrator.http_api.paths import fleet_paths
from orchestrator.state.directory import StateDir
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.verbs.roles import Role
from queue_core.verbs.wire import Json
from tests.console.visits import Visitor
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.fleet_views import a_heartbeat, a_running_pool, a_view
from tests.support.servers import a_server

SECRETS = {role: f"{str(role.name).lower()}-secret-0123456789" for role in Role}
TOKENS = tuple(AccessToken(role, secret) for role, secret in SECRETS.items())
MISTAKE = "towline.yaml:3:5: store: postgresql://me:hunter2@host/db: no such setting"
DEATH: Json = {
    "at": 20.0,
    "worker": "resize-old",
    "pool": "resize",
    "cause": "signalled",
    "detail": "ended by SIGKILL",
    "lived_seconds": 12.0,
    "held_total": 1,
    "held": [{"queue": "thumbs", "task": "cat", "fate": "given back"}],
    "stack": ["tasks.py:14 in resize", "\x1b[2Jlib.py:3"],
    "last_lines": ["<b>opening cat.jpg</b>"],
}


class Fleet:
    """A supervisor's listener with a console, beside a queue server."""

    def __init__(self, folder: Path, queues: str) -> None:
        self.files = StateDir(folder / "state")
        self.files.path.mkdir()
        self.problems: list[str] = []
        decision = {"pool": "resize", "current": 1, "target": 3, "rule": "deadline", "why": "9 ready", "ready": 9}
        decision |= {"limited_by": [], "would_be_without_guards": 3, "at": 30.0}
        pool = {"settings": {"queue": "thumbs", "slo_seconds": 30.0}, "decision": decision, "states": []}
        snapshot = {"phase": "leading", "pid": 1, "shown_at": 40.0, "pools": {"resize": pool}, "workers": []}
        self.files.write_snapshot(snapshot)
        self.files.decisions.append({**decision, "at": 10.0, "why": "1 ready"})
        self.files.deaths.append(DEATH)
        settings = [
            ("store", "postgresql://me:pw@host/db", "towline.yaml:1:1"),
            ("pools.resize.env.KEY", "hidden", "towline.yaml:9:9"),
            ("lifecycle", "task", "default"),
        ]
        heartbeat, clock = a_heartbeat(a_view(a_running_pool(a_pool(most=8))))
        paths = fleet_paths(
            heartbeat, clock, files=self.files, settings=lambda: settings, problems=lambda: self.problems
        )
        self.listener = FleetListener(ServeOptions(port=0, tokens=TOKENS, console_writes=True), paths, queues=queues)
        self.listener.start()

    def visitor(self, role: Role) -> Visitor:
        visitor = Visitor(int(self.listener.url.rpartition(":")[2]))
        visitor.post("login", {"token": SECRETS[role]})
        return visitor


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with a_server(options=ServeOptions(tokens=TOKENS)) as server:
        fleet = Fleet(tmp_path_factory.mktemp("fleet"), server.url)
        yield fleet
        fleet.listener.stop()


def test_a_pool_shows_the_orders_in_force_and_an_operator_gives_and_ends_them(fleet: Fleet) -> None:
    operator, here = fleet.visitor(Role.OPERATOR), "pools/resize"
    assert "1 → 3 workers: 9 ready" in operator.get(here).text
    shown = operator.post(f"{here}/scale", {"workers": "4", "minutes": "30", "back": here})
    assert "Override: scaled to 4 by hand, for 30 min more" in shown.text
    assert "End the override" not in fleet.visitor(Role.VIEWER).get(here).text
    assert "Override:" not in operator.post(f"{here}/unscale", {"back": here}).text
    assert "changes of size are paused" in operator.post(f"{here}/pause", {"back": here}).text
    assert "Override:" not in operator.post(f"{here}/resume", {"back": here}).text
    for fields, status in (({"workers": "many"}, 422), ({"workers": "9"}, 422)):
        assert operator.post(f"{here}/scale", fields).status == status


def test_a_click_on_the_past_shows_the_decision_of_then(fleet: Fleet) -> None:
    looking = fleet.visitor(Role.VIEWER)
    assert '?at=10.0"' in looking.get("pools/resize").html
    then = looking.get("pools/resize?at=15").text
    assert ("as it was at" in then, "1 ready" in then) == (True, True)
    assert "Override:" not in then


def test_decisions_that_repeat_within_a_moment_are_one_row_with_a_count(fleet: Fleet) -> None:
    for number in range(4):
        told = {"pool": "resize", "rule": "backlog", "current": number, "target": 7, "why": "7 waiting", "ready": 7}
        fleet.files.decisions.append({"at": 20 + number / 4, **told})
    shown = fleet.visitor(Role.VIEWER).get("pools/resize").text
    assert shown.count("7 waiting") == 1
    assert "7 waiting (x4)" in shown
    assert "1 ready (x" not in shown


def test_deaths_lists_workers_that_failed_and_those_that_finished_when_asked_on_request(fleet: Fleet) -> None:
    ended = {"at": 39.0, "worker": "resize-replaced", "pool": "resize", "cause": "drained", "held_total": 0}
    fleet.files.deaths.append({**ended, "detail": "replaced by resize-new: its settings changed"})
    looking = fleet.visitor(Role.VIEWER)
    failed, ended_too = looking.get("deaths").text, looking.get("deaths?all=1").text
    assert ("resize-old" in failed, "resize-replaced" in failed) == (True, False)
    assert "replaced by resize-new: its settings changed" in ended_too


def test_the_fleet_page_names_deaths_as_soon_as_they_are_on_record(fleet: Fleet) -> None:
    looking, now = fleet.visitor(Role.VIEWER), SystemMonotonicClock().wall_seconds()
    assert "died within" not in looking.get("").text
    for number in range(5):
        killed = {"at": now + number / 100, "worker": f"resize-{number}", "pool": "resize", "cause": "signalled"}
        fleet.files.deaths.append({**killed, "detail": "ended by SIGKILL"})
    fleet.files.deaths.append({"at": now, "worker": "resize-asked", "pool": "resize", "cause": "drained"})
    shown = looking.get("").text
    assert "5 workers died within" in shown
    assert "last resize-4: ended by SIGKILL" in shown


@pytest.mark.parametrize("order", ["pools/resize/scale", "pools/resize/pause", "drain", "reload"])
def test_an_order_of_a_lesser_role_is_refused_by_the_api(fleet: Fleet, order: str) -> None:
    for role in (Role.VIEWER, Role.PRODUCER, Role.WORKER):
        refused = fleet.visitor(role).post(order, {"workers": "1"})
        assert (refused.status, "needs a token of one of these roles" in refused.text) == (403, True), role


def test_how_a_worker_ended_is_shown_with_its_stack_and_last_lines_as_text(fleet: Fleet) -> None:
    shown = fleet.visitor(Role.VIEWER).get("workers/resize-old")
    assert "ended by SIGKILL" in shown.text
    assert "tasks.py:14 in resize" in shown.text
    assert "\\x1b[2Jlib.py:3" in shown.text
    assert "&lt;b&gt;opening cat.jpg&lt;/b&gt;" in shown.html
    assert 'href="../queues/thumbs/tasks/cat"' in shown.html


def test_settings_in_force_are_shown_with_their_origin_and_without_secrets(fleet: Fleet) -> None:
    looking = fleet.visitor(Role.VIEWER)
    shown = looking.get("settings")
    assert "postgresql://me:***@host/db" in shown.text
    assert "towline.yaml:9:9" in shown.text
    assert "hidden" not in shown.text
    assert ("lifecycle" in shown.text, "No mistakes" in shown.text) == (False, True)
    assert "lifecycle" in looking.get("settings?all=1").text
    assert "lifecycle" in looking.get("settings?q=LIFE").text


def test_what_is_wrong_with_the_file_is_shown_without_the_password_in_it(fleet: Fleet) -> None:
    fleet.problems.append(MISTAKE)
    try:
        shown = fleet.visitor(Role.VIEWER).get("settings").text
    finally:
        fleet.problems.clear()
    assert "1 mistake in the file" in shown
    assert "postgresql://***@host/db" in shown
    assert "hunter2" not in shown


def test_every_page_of_the_menu_is_there(fleet: Fleet) -> None:
    looking = fleet.visitor(Role.VIEWER)
    for path in ("", "queues", "workers", "deaths", "schedules", "events", "settings"):
        shown = looking.get(path)
        assert (shown.status, 'aria-current="page"' in shown.html) == (200, True), path
