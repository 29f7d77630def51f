"""The supervisor's own HTTP: numbers that may be acted on or none, metrics as documented, health, the same gate."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Final, get_args

import jsonschema_rs
import pytest
from prometheus_client.parser import text_string_to_metric_families

import orchestrator
from orchestrator.base.clock import ManualMonotonicClock, Monotonic
from orchestrator.base.samples import UnservedTag
from orchestrator.fleet.exits import Cause
from orchestrator.fleet.quarantine import IsolatedTask, SuspectedTask
from orchestrator.http_api import paths
from orchestrator.http_api.listener import FleetListener
from orchestrator.http_api.paths import fleet_paths
from orchestrator.scaling.decision import GuardName
from orchestrator.supervisor.view import LIVE_SECONDS, FleetView, Heartbeat, Phase, view_of
from queue_core.errors import InvalidSettingError
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.base.problems import Problem
from queue_core.server.metrics import exposition
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.verbs.roles import Role
from tests.support.commands import Commands
from tests.support.fleet.fleet_builders import NOW, a_pool
from tests.support.fleet.fleet_views import a_heartbeat, a_running_pool, a_view
from tests.support.servers import read_reply

DOC: Final = Path(orchestrator.__file__).parents[1] / "docs/reference/metrics.md"
OBSERVER: Final = "observer-secret-0123456789"
VIEWER: Final = AccessToken(Role.VIEWER, OBSERVER)


@contextmanager
def alone(pulse: Heartbeat, clock: ManualMonotonicClock, *tokens: AccessToken) -> Iterator[int]:
    """A listener of a supervisor without a queue server; its port."""
    listener = FleetListener(ServeOptions(port=0, tokens=tokens), fleet_paths(pulse, clock, is_alone=True))
    listener.start()
    try:
        yield int(listener.url.rpartition(":")[2])
    finally:
        listener.stop()


@contextmanager
def beside_queues(pulse: Heartbeat, clock: ManualMonotonicClock, *tokens: AccessToken) -> Iterator[int]:
    """The same paths at the listener of a queue server; its port."""
    server = ServerThread(MemoryStore(), ServeOptions(port=0, tokens=tokens), extensions=fleet_paths(pulse, clock))
    url = server.start()
    try:
        yield int(url.rpartition(":")[2])
    finally:
        server.stop()


BOTH = pytest.mark.parametrize("serving", [alone, beside_queues])


def got(port: int, path: str, *, token: str = "", host: str = "") -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request("GET", path, headers=headers | ({"host": host} if host else {}))
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


@BOTH
def test_a_pool_is_told_in_flat_numbers(serving: object) -> None:
    with serving(*a_heartbeat()) as port:  # type: ignore[operator]
        answer, body = got(port, "/v1/pools/resize/stats")
    told = json.loads(body)
    assert answer.status == 200
    assert (
        told.items()
        >= {
            "pool": "resize",
            "ready": 2,
            "leased": 0,
            "oldest_age_seconds": 4.0,
            "desired_workers": 2,
            "alive_workers": 2,
            "busy_workers": 1,
            "idle_workers": 1,
            "slo_seconds": 30.0,
            "max_workers": 8,
            "paused": 0,
            "sample_age_seconds": 0.0,
        }.items()
    )
    assert all(isinstance(value, int | float | str) for value in told.values())


@BOTH
def test_suspects_that_wait_for_a_worker_are_told_in_numbers_and_to_prometheus(serving: object) -> None:
    pool = a_running_pool()
    task = SuspectedTask("thumbs", "poison", None, 0.5, 2, 5)
    pool.suspected = (IsolatedTask(task, "7.99", NOW, Monotonic(NOW + 120)),)
    with serving(*a_heartbeat(a_view(pool))) as port:  # type: ignore[operator]
        told = json.loads(got(port, "/v1/pools/resize/stats")[1])
        metrics = got(port, "/metrics")[1].decode()
    assert told["suspects"] == 1
    assert 'towline_pool_suspects{pool="resize"} 1.0' in metrics


@BOTH
def test_how_late_leases_were_and_what_is_wrong_is_told_in_numbers_and_to_prometheus(serving: object) -> None:
    pool = a_running_pool(a_pool(slo=3.0))
    pool.counters.waits = pool.counters.waits.after([0.1] * 8 + [2.0], at=NOW)
    with serving(*a_heartbeat(a_view(pool))) as port:  # type: ignore[operator]
        told = json.loads(got(port, "/v1/pools/resize/stats")[1])
        metrics = got(port, "/metrics")[1].decode()
    assert (told["p99_over_slo"], told["worst_over_slo"]) == (2.0, 2.0)
    assert told["concerns"] == "late"
    assert told["concerns_why"].startswith("1 task has waited 1 s past its SLO of 3 s: ")
    for le, count in (("0.25", 8), ("1.5", 8), ("3", 9), ("+Inf", 9)):
        assert f'towline_wait_over_slo_bucket{{le="{le}",pool="resize"}} {count}.0' in metrics
    assert 'towline_wait_over_slo_count{pool="resize"} 9.0' in metrics


@BOTH
def test_tags_that_no_pool_works_on_and_states_are_told_in_words_and_counted_for_prometheus(serving: object) -> None:
    pool = a_running_pool()
    pool.sample = replace(pool.sample, paused=True)  # type: ignore[type-var]
    unserved = [UnservedTag("thumbs", tag, tasks, 0, f"{tasks} of {tag}") for tag, tasks in (("rezise", 3), (None, 1))]
    view = view_of([pool], phase="leading", started_at=Monotonic(NOW - 3600), unserved=unserved)
    with serving(*a_heartbeat(view)) as port:  # type: ignore[operator]
        told = json.loads(got(port, "/v1/pools")[1])
        metrics = got(port, "/metrics")[1].decode()
    assert told["unserved"] == [
        {"queue": "thumbs", "tag": "rezise", "tasks": 3, "sentence": "3 of rezise"},
        {"queue": "thumbs", "tag": None, "tasks": 1, "sentence": "1 of None"},
    ]
    assert told["pools"][0]["states"].startswith("the queue thumbs is paused")
    for line in (
        'queue_unserved_tasks{queue="thumbs"} 4.0',
        'pool_paused{pool="resize"} 1.0',
        'pool_late{pool="resize"} 0.0',
    ):
        assert f"towline_{line}" in metrics


def test_health_names_pools_of_a_server_elsewhere_to_those_who_may_see_them(
    towline: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = a_running_pool(a_pool("resize", slo=3.0))
    with beside_queues(*a_heartbeat(a_view(late, a_running_pool(a_pool("other")))), VIEWER) as port:
        url = f"http://127.0.0.1:{port}"
        told = towline("health", "--url", url)
        assert (told.code, told.out.endswith("supervisor: leading\n")) == (0, True)
        monkeypatch.setenv("TOWLINE_TOKEN", OBSERVER)
        told = towline("health", "--url", url)
        assert told.code == 0
        (line,) = told.out.splitlines()[1:]
        assert line.startswith("pool resize: late: 1 task has waited 1 s past its SLO of 3 s: ")
        found = towline("health", "--url", url, "--json").json["supervisor"]["concerns"]  # type: ignore[index]
        assert [(one["pool"], one["kinds"]) for one in found] == [("resize", ["late"])]


@BOTH
def test_every_answer_is_as_the_openapi_document_says(serving: object) -> None:
    with serving(*a_heartbeat()) as port:  # type: ignore[operator]
        document = json.loads(got(port, "/openapi.json")[1])
        for path, place in {
            "/v1/pools": "/v1/pools",
            "/v1/pools/resize/stats": "/v1/pools/{pool}/stats",
            "/v1/supervisor/livez": "/v1/supervisor/livez",
            "/v1/supervisor/readyz": "/v1/supervisor/readyz",
            "/v1/supervisor/leader": "/v1/supervisor/leader",
        }.items():
            operation = document["paths"][place]["get"]
            schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
            answer, body = got(port, path)
            assert answer.status == 200
            jsonschema_rs.validate({**schema, "components": document["components"]}, json.loads(body))
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(set(names)) == len(names)


@BOTH
def test_an_observers_token_reads_numbers_and_metrics_and_nobody_else_does(serving: object) -> None:
    with serving(*a_heartbeat(), VIEWER) as port:  # type: ignore[operator]
        for path in ("/v1/pools", "/v1/pools/resize/stats", "/metrics"):
            assert got(port, path)[0].status == 401
            assert got(port, path, token="wrong-secret-0123456789")[0].status == 401
            assert got(port, path, token=OBSERVER)[0].status == 200
        assert got(port, "/v1/supervisor/livez")[0].status == 200


@BOTH
def test_a_page_that_made_its_name_resolve_here_is_refused(serving: object) -> None:
    with serving(*a_heartbeat()) as port:  # type: ignore[operator]
        for path in ("pools", "supervisor/livez", "supervisor/readyz", "supervisor/leader"):
            assert got(port, f"/v1/{path}", host="evil.example")[0].status == 421
        assert got(port, "/openapi.json", host="evil.example")[0].status == 421


@BOTH
def test_a_request_for_another_protocol_is_served_as_it_is(serving: object) -> None:
    with serving(*a_heartbeat()) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as caller:  # type: ignore[operator]
        lines = [
            "GET /v1/pools HTTP/1.1",
            "host: localhost",
            "connection: upgrade",
            "upgrade: h2c",
            "content-length: 30",
        ]
        caller.sendall("\r\n".join([*lines, "", "GET /inner HTTP/1.1\r\nhost: a\r\n"]).encode())
        assert read_reply(caller).status == 200
        caller.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n")
        assert read_reply(caller).status == 400


@BOTH
def test_an_unknown_pool_is_told_with_what_may_be_meant(serving: object) -> None:
    with serving(*a_heartbeat()) as port:  # type: ignore[operator]
        answer, body = got(port, "/v1/pools/resise/stats")
        assert (answer.status, json.loads(body)["type"]) == (404, "urn:towline:problem:unknown-pool")
        assert "resize" in json.loads(body)["detail"]
        answer, body = got(port, "/v1/pools/" + "x" * 3_000 + "/stats")
        assert answer.status == 404
        assert len(body) < 1_000


def test_probes_at_a_listener_of_its_own_have_their_usual_names() -> None:
    with alone(*a_heartbeat()) as port:
        for path in ("/livez", "/healthz", "/readyz"):
            assert got(port, path)[0].status == 200
        assert got(port, "/nothing")[0].status == 404


def test_a_listener_that_the_network_reaches_wants_tokens() -> None:
    with pytest.raises(InvalidSettingError, match="token"):
        FleetListener(ServeOptions(host="0.0.0.0", port=0), fleet_paths(*a_heartbeat()))


def test_a_stopped_listener_lets_go_of_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "fleet.sock"
    listener = FleetListener(ServeOptions(socket_path=path), fleet_paths(*a_heartbeat()))
    listener.start()
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(path))
    listener.stop()
    assert not path.exists()


@pytest.mark.parametrize(
    ("phase", "why"),
    [("starting", "is starting"), ("standby", "is standby"), ("stopping", "is stopping"), ("stopped", "has stopped")],
)
def test_only_the_leader_has_numbers(phase: Phase, why: str) -> None:
    pulse, _ = a_heartbeat(a_view(phase=phase))
    with pytest.raises(Problem) as refused:
        paths.pool_stats(pulse, "resize", now=NOW)
    assert refused.value.status == 503
    assert why in refused.value.detail


def test_numbers_of_a_supervisor_that_hangs_are_not_told() -> None:
    pulse, clock = a_heartbeat()
    clock.advance(LIVE_SECONDS)
    assert paths.pool_stats(pulse, "resize", now=clock.monotonic()).sample_age_seconds == LIVE_SECONDS
    clock.advance(0.001)
    for ask in (paths.live, paths.ready, paths.leader, paths.all_pools):
        with pytest.raises(Problem, match="60 s"):
            ask(pulse, now=clock.monotonic())


def test_a_standby_is_well_and_ready_but_no_leader() -> None:
    pulse, _ = a_heartbeat(a_view(phase="standby"))
    assert paths.ready(pulse, now=NOW).phase == "standby"
    with pytest.raises(Problem):
        paths.leader(pulse, now=NOW)


def test_a_pool_that_is_not_decided_on_has_no_numbers_yet() -> None:
    pool = a_running_pool()
    pool.decision = None
    pulse, _ = a_heartbeat(a_view(pool))
    with pytest.raises(Problem, match="not been decided"):
        paths.pool_stats(pulse, "resize", now=NOW)
    assert paths.all_pools(pulse, now=NOW).pools == ()


def test_workers_of_others_are_looked_for_before_their_number_is_told() -> None:
    pool = a_running_pool(a_pool(runtime="external"))
    young, _ = a_heartbeat(a_view(pool, started_at=NOW - paths.SETTLING_SECONDS + 0.001))
    with pytest.raises(Problem):
        paths.pool_stats(young, "resize", now=NOW)
    settled, _ = a_heartbeat(a_view(pool, started_at=NOW - paths.SETTLING_SECONDS))
    assert paths.pool_stats(settled, "resize", now=NOW).desired_workers == 2


def test_a_dry_run_asks_nobody_for_workers() -> None:
    pool = a_running_pool(a_pool(dry_run=True))
    assert pool.decision is not None
    pool.decision = replace(pool.decision, target=7)
    assert paths.pool_stats(a_heartbeat(a_view(pool))[0], "resize", now=NOW).desired_workers == 2


def told_of(view: FleetView | None = None) -> dict[str, dict[str, object]]:
    pulse, clock = a_heartbeat(view)
    families = text_string_to_metric_families(exposition(*fleet_paths(pulse, clock).collectors).decode())
    return {
        sample.name: {"type": family.type, "labels": {k for k in sample.labels if k != "le"}}
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def documented(prefix: str) -> dict[str, dict[str, object]]:
    rows = re.findall(r"^\| `(towline_\w+)` \| (\w+) \|([\w, ]*)\|", DOC.read_text(), re.MULTILINE)
    return {
        name: {"type": kind, "labels": set(labels.replace(" ", "").split(",")) - {""}}
        for name, kind, labels in rows
        if name.startswith(prefix)
    }


def test_the_page_of_metrics_names_every_metric_with_its_kind_and_labels() -> None:
    told = told_of()
    histograms = {"towline_supervisor_turn_duration_seconds": set(), "towline_wait_over_slo": {"pool"}}
    for histogram, labels in histograms.items():
        for name in ("bucket", "sum", "count"):
            assert told.pop(f"{histogram}_{name}") == {"type": "histogram", "labels": labels}
    process = {name for name in told if name.startswith("process_")}
    assert process <= set(re.findall(r"`(process_\w+)`", DOC.read_text()))
    for name in process:
        del told[name]
    expected = {}
    for prefix in ("towline_pool_", "towline_supervisor_", "towline_wait_", "towline_queue_unserved_"):
        expected |= documented(prefix)
    for histogram, labels in histograms.items():
        assert expected.pop(histogram) == {"type": "histogram", "labels": labels}
    assert told == expected


def test_the_page_of_metrics_names_every_label() -> None:
    page = DOC.read_text()
    for word in [*get_args(GuardName), *[cause.value.replace(" ", "_") for cause in Cause]]:
        assert f"`{word}`" in page, word


def test_a_queue_server_tells_the_metrics_of_both() -> None:
    with beside_queues(*a_heartbeat()) as port:
        text = got(port, "/metrics")[1].decode()
    assert 'towline_pool_desired_workers{pool="resize"} 2.0' in text
    assert "towline_waiting_leases 0.0" in text
    assert 'towline_pool_deaths_total{cause="out_of_memory",pool="resize"} 1.0' in text
    assert 'towline_pool_guard_active{guard="max",pool="resize"} 0.0' in text
    assert "towline_supervisor_leading 1.0" in text


def test_a_fleet_of_no_pools_is_told_too() -> None:
    pulse, clock = a_heartbeat(FleetView("leading", NOW, {}))
    assert b"towline_supervisor_pools 0.0" in exposition(*fleet_paths(pulse, clock).collectors)
