"""Orders about workers over HTTP: by whom they may be given, what they say, and what is written for the supervisor."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from orchestrator.base import events
from orchestrator.config.worker_requests import NO_WORKER_REQUESTS
from queue_core.verbs.roles import Role
from tests.support.fleet.fleet_builders import a_worker
from tests.support.fleet.order_desk import SECRETS, OrderDesk

WORKER = "resize-abc123"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[OrderDesk]:
    desk = OrderDesk(tmp_path)
    desk.publish(a_worker(WORKER, "busy", ref="pid:7", leases=1), a_worker("elsewhere", "idle", ref="external:1"))
    yield desk
    desk.listener.stop()


@pytest.mark.parametrize(
    ("path", "may"),
    [
        (f"/v1/workers/{WORKER}/drain", Role.OPERATOR | Role.ADMIN),
        (f"/v1/workers/{WORKER}/kill", Role.ADMIN),
        ("/v1/pools/resize/replace", Role.OPERATOR | Role.ADMIN),
    ],
)
def test_to_kill_is_for_administrators_and_the_rest_for_operators(desk: OrderDesk, path: str, may: Role) -> None:
    for role in Role:
        code, told = desk.order(path, {}, secret=SECRETS[role])
        assert code == (200 if role & may else 403), (role, told)
        if not role & may:
            assert desk.files.read_worker_requests() == NO_WORKER_REQUESTS, role
        else:
            (desk.files.path / "worker_requests.json").unlink()


def test_an_order_about_a_worker_says_what_it_holds_and_the_log_says_by_whom(desk: OrderDesk) -> None:
    with capture_logs() as logged:
        code, told = desk.order(f"/v1/workers/{WORKER}/drain", {}, secret="ops-secret-0123456789")
    assert (code, told["pool"], told["order"], told["holds"]) == (200, "resize", "drain", 1)
    assert told["sentence"] == "it finishes its task, takes no other, and ends"
    (entry,) = [one for one in logged if one["event"] == events.OPERATOR_ACTED]
    assert (entry["action"], entry["worker"], entry["by"]) == ("drain", WORKER, "ops@example.com")
    written = desk.files.read_worker_requests().workers[WORKER]
    assert (written.verb, written.by) == ("drain", "ops@example.com")
    _, told = desk.order(f"/v1/workers/{WORKER}/kill", {}, secret=SECRETS[Role.ADMIN])
    assert told["sentence"] == "it is killed; its task runs again at once, and the lease does not count"
    assert desk.files.read_worker_requests().workers[WORKER].verb == "kill"


def test_a_worker_that_was_ordered_to_end_is_listed_after_it_though_figures_from_before_it_were_read(
    desk: OrderDesk,
) -> None:
    assert desk.ask("GET", "/v1/workers", None, secret=SECRETS[Role.ADMIN])[0] == 200
    desk.publish(a_worker("resize-later1", "busy", ref="pid:8", leases=1))
    assert desk.order("/v1/workers/resize-later1/kill", {}, secret=SECRETS[Role.ADMIN])[0] == 200
    _, told = desk.ask("GET", "/v1/workers", None, secret=SECRETS[Role.ADMIN])
    assert [one["worker"] for one in cast("list[dict[str, object]]", told["workers"])] == ["resize-later1"]


def test_a_pool_s_workers_are_all_replaced(desk: OrderDesk) -> None:
    code, told = desk.order("/v1/pools/resize/replace", {})
    assert (code, told["workers"]) == (200, 2)
    assert told["sentence"] == "2 workers are replaced, new before old; none is cut"
    assert desk.files.read_worker_requests().pools["resize"].by == "a caller of role operator"
    assert desk.order("/v1/pools/resise/replace", {})[0] == 404


@pytest.mark.parametrize("verb", ["drain", "kill"])
def test_a_worker_that_is_not_there_or_not_ours_takes_no_order(desk: OrderDesk, verb: str) -> None:
    code, told = desk.order(f"/v1/workers/resize-abc12/{verb}", {}, secret=SECRETS[Role.ADMIN])
    assert code == 404
    assert f"did you mean '{WORKER}'" in str(told["detail"])
    code, told = desk.order(f"/v1/workers/elsewhere/{verb}", {}, secret=SECRETS[Role.ADMIN])
    assert code == 422
    assert "started by another system" in str(told["detail"])
    desk.files.deaths.append({"worker": "resize-gone", "pool": "resize", "cause": "finished"})
    code, told = desk.order(f"/v1/workers/resize-gone/{verb}", {}, secret=SECRETS[Role.ADMIN])
    assert (code, "has ended" in str(told["detail"])) == (404, True)
    assert desk.files.read_worker_requests() == NO_WORKER_REQUESTS


def test_a_supervisor_that_stands_by_takes_no_order_about_a_worker(tmp_path: Path) -> None:
    desk = OrderDesk(tmp_path, phase="standby")
    desk.publish(a_worker(WORKER, "idle", ref="pid:7"))
    try:
        assert desk.order(f"/v1/workers/{WORKER}/drain", {})[0] == 503
        assert desk.order("/v1/pools/resize/replace", {})[0] == 503
    finally:
        desk.listener.stop()
