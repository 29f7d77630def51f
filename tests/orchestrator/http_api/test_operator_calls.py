"""Orders over HTTP: written where the supervisor reads them, by whom may give them only, and told in its log."""

import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Final, cast

import pytest
from structlog.testing import capture_logs

from orchestrator.base import events
from orchestrator.base.clock import Monotonic
from orchestrator.config.overrides import NO_OVERRIDES
from orchestrator.http_api.listener import FleetListener
from orchestrator.http_api.paths import fleet_paths
from orchestrator.state.directory import StateDir
from queue_core.server.base.options import ServeOptions
from queue_core.verbs.roles import Role
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.fleet_views import a_heartbeat, a_running_pool, a_view
from tests.support.fleet.order_desk import SECRETS, OrderDesk

Json = dict[str, object]
HOST: Final = socket.gethostname()
ORDERS: Final[dict[str, Json]] = {
    "/v1/pools/resize/scale": {"workers": 3},
    "/v1/pools/resize/pause": {},
    "/v1/pools/resize/resume": {},
    "/v1/pools/resize/finish-by": {"at": None},
    "/v1/hosts/this/drain": {},
    "/v1/hosts/this/undrain": {},
    "/v1/supervisor/reload": {"wait_seconds": 0},
}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[OrderDesk]:
    desk = OrderDesk(tmp_path)
    yield desk
    desk.listener.stop()


@pytest.mark.parametrize("path", ORDERS)
def test_an_order_needs_an_operator_or_an_admin_and_nothing_less(desk: OrderDesk, path: str) -> None:
    with desk.files.locked():
        for role in set(Role) - {Role.OPERATOR, Role.ADMIN}:
            code, told = desk.order(path, ORDERS[path], secret=SECRETS[role])
            assert code == 403, role
            assert "operator" in str(told["detail"])
        assert desk.order(path, ORDERS[path], secret="wrong-secret-0123456789")[0] == 401
        left = {file.name for file in desk.files.path.iterdir()}
        assert left == {"supervisor.lock", "workers.lock"}, "a refused order left a trace"
        for role in (Role.OPERATOR, Role.ADMIN):
            assert desk.order(path, ORDERS[path], secret=SECRETS[role])[0] == 200, role


def test_a_pool_is_scaled_for_a_while_and_the_log_says_by_whom(desk: OrderDesk) -> None:
    with capture_logs() as logged:
        code, told = desk.order(
            "/v1/pools/resize/scale", {"workers": 5, "seconds": 1800}, secret="ops-secret-0123456789"
        )
    assert (code, told["sentences"], told["alive"]) == (200, ["scaled to 5 by hand, for 30 min more"], False)
    (entry,) = [one for one in logged if one["event"] == events.OPERATOR_ACTED]
    assert (entry["action"], entry["pool"], entry["by"]) == ("scale", "resize", "ops@example.com")
    assert "ordered over HTTP by ops@example.com" in entry["sentence"]
    scaled = desk.overrides().scale
    assert scaled is not None
    assert scaled.workers == 5
    desk.clock.advance(1801)
    assert desk.overrides() == NO_OVERRIDES


def test_a_size_beyond_max_is_refused_unless_forced(desk: OrderDesk) -> None:
    code, told = desk.order("/v1/pools/resize/scale", {"workers": 21})
    assert code == 422
    assert "21 workers are more than max 20 of pool resize" in str(told["detail"]), "a window of its schedule allows 20"
    assert desk.order("/v1/pools/resize/scale", {"workers": 21, "force": True})[0] == 200
    assert desk.order("/v1/pools/resize/scale", {"workers": -1})[0] == 422
    assert desk.order("/v1/pools/resize/scale", {"workers": 1, "seconds": 31 * 86_400})[0] == 422
    assert desk.order("/v1/pools/resize/scale", {})[0] == 422


def test_orders_are_kept_beside_each_other_and_taken_back(desk: OrderDesk) -> None:
    desk.order("/v1/pools/resize/scale", {"workers": 2})
    _, told = desk.order("/v1/pools/resize/pause", {"changes": "down"})
    assert told["sentences"] == ["scaled to 2 by hand, for 1 h more", "changes down are paused"]
    at = desk.clock.wall_seconds() + 7200
    _, told = desk.order("/v1/pools/resize/finish-by", {"at": at})
    assert cast("list[str]", told["sentences"])[-1] == "to be done in 2 h"
    assert desk.order("/v1/pools/resize/finish-by", {"at": 1.0})[0] == 422
    _, told = desk.order("/v1/pools/resize/scale", {"workers": None})
    assert told["orders"] == {"paused": "down"}
    assert desk.order("/v1/pools/resize/resume", {})[1]["orders"] == {}


def test_a_pool_that_is_not_there_takes_no_order(desk: OrderDesk) -> None:
    code, told = desk.order("/v1/pools/resise/pause", {})
    assert code == 404
    assert "did you mean 'resize'" in str(told["detail"])


def test_a_supervisor_that_stands_by_takes_no_order_for_a_pool(tmp_path: Path) -> None:
    desk = OrderDesk(tmp_path, phase="standby")
    try:
        code, told = desk.order("/v1/pools/resize/pause", {})
    finally:
        desk.listener.stop()
    assert code == 503
    assert "the one that leads" in str(told["detail"])


def test_a_host_is_drained_by_its_name_and_keeps_the_time_of_the_first_order(desk: OrderDesk) -> None:
    code, told = desk.order(f"/v1/hosts/{HOST}/drain", {})
    assert (code, told["host"], told["drained"], told["workers"]) == (200, HOST, True, 0)
    desk.clock.advance(60)
    assert desk.order("/v1/hosts/this/drain", {})[1]["drained_at"] == told["drained_at"]
    assert desk.files.is_drained()
    assert desk.ask("GET", f"/v1/hosts/{HOST}", None, secret=SECRETS[Role.VIEWER])[1]["drained"] is True
    assert desk.order("/v1/hosts/this/undrain", {})[1]["drained"] is False
    code, told = desk.order("/v1/hosts/elsewhere/drain", {})
    assert code == 404
    assert f"this supervisor runs on {HOST}, not on elsewhere" in str(told["detail"])


def test_a_reload_is_asked_for_once_and_answered_to_all(desk: OrderDesk) -> None:
    assert desk.order("/v1/supervisor/reload", {})[0] == 503, "no supervisor is alive"
    desk.clock.set_wall(desk.files.path.stat().st_mtime - desk.clock.wall_seconds())
    with desk.files.locked():
        _, first = desk.order("/v1/supervisor/reload", {"wait_seconds": 0})
        assert (first["answered"], first["reloaded"]) == (False, False)
        _, second = desk.order("/v1/supervisor/reload", {"wait_seconds": 0})
        assert second["request"] == first["request"], "the supervisor has not looked yet"
        desk.files.write_reload_answer(
            {"request": first["request"], "changes": [{"pool": "resize"}], "queues": ["new"], "next_start": ["store"]}
        )
        path = f"/v1/supervisor/reload?request={first['request']}"
        _, told = desk.ask("GET", path, None, secret=SECRETS[Role.VIEWER])
        assert (told["reloaded"], told["queues"], told["next_start"]) == (True, ["new"], ["store"])
        _, third = desk.order("/v1/supervisor/reload", {"wait_seconds": 0})
        assert third["request"] != first["request"]
        desk.files.write_reload_answer({"request": third["request"], "mistakes": ["towline.yaml:3: no"]})
        path = f"/v1/supervisor/reload?request={third['request']}"
        _, told = desk.ask("GET", path, None, secret=SECRETS[Role.VIEWER])
        assert (told["answered"], told["reloaded"], told["mistakes"]) == (True, False, ["towline.yaml:3: no"])


def test_a_state_directory_that_cannot_be_written_says_so(desk: OrderDesk) -> None:
    (desk.files.path / "orders.lock").mkdir()
    code, told = desk.order("/v1/pools/resize/pause", {})
    assert code == 507
    assert "nothing was changed" in str(told["detail"])


def test_a_page_of_another_site_gives_no_order(tmp_path: Path) -> None:
    files = StateDir(tmp_path)
    listener = FleetListener(ServeOptions(port=0), fleet_paths(*a_heartbeat(), files=files))
    listener.start()
    try:
        for headers, code in (
            ({"origin": "http://evil.example", "content-type": "application/json"}, 403),
            ({"content-type": "text/plain"}, 415),
            ({"host": "evil.example", "content-type": "application/json"}, 421),
        ):
            connection = HTTPConnection(listener.url.removeprefix("http://"), timeout=10)
            connection.request("POST", "/v1/pools/resize/pause", "{}", headers)
            assert connection.getresponse().status == code
            connection.close()
    finally:
        listener.stop()
    assert files.read_overrides() == {}


def test_a_view_has_the_bounds_of_the_file_beside_those_in_force() -> None:
    pool = a_running_pool(a_pool(most=8))
    pool.effective = a_pool(most=8).bounded(3, 3)
    view = a_view(pool, started_at=Monotonic(0)).pools["resize"]
    assert (view.spec.workers.max, view.settings and view.settings.workers.max) == (3, 8)
