"""What-if: the arrivals of a queue's history or of a CSV, simulated with the settings of today and with others."""

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from orchestrator.http_api import what_if
from orchestrator.http_api.paths import fleet_paths
from orchestrator.state.directory import StateDir
from queue_core.client.connect import open_queues
from queue_core.console.arrivals import arrivals_of, read_arrivals
from queue_core.server.base.options import ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, QueueSpec
from queue_core.verbs.wire import Json
from tests.console.visits import SAME_ORIGIN, Visitor
from tests.support.fleet.fleet_views import a_heartbeat

SETTINGS = """\
store: "memory:"
queues: {work: {}}
pools:
  resize: {queue: work, command: [sleep], slo: 30s, workers: {min: 0, max: 2}}
"""
POOL: Json = {
    "settings": {
        "queue": "work",
        "queues": ["work"],
        "tags": [],
        "slo_seconds": 30.0,
        "settings_min": 0,
        "settings_max": 2,
    }
}
CSV = "arrival_s,service_s\n" + "".join(f"{number},5\n" for number in range(40))


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("what-if")
    (folder / "towline.yaml").write_text(SETTINGS)
    files = StateDir(folder / ".towline")
    files.path.mkdir()
    files.write_snapshot({"phase": "leading", "shown_at": 0.0, "pools": {"resize": POOL}, "workers": []})
    store = MemoryStore()
    extensions = fleet_paths(*a_heartbeat(), files=files, file=folder / "towline.yaml")
    server = ServerThread(store, ServeOptions(port=0), extensions=extensions)
    url = server.start()
    with closing(open_queues(url)) as queues:
        queues.put_queue(QueueSpec("work"))
        queue = queues.queue("work")
        queue.add([NewTask(b"", name=f"t{number}") for number in range(3)])
        queue.delete(queue.lease(3, worker="w"))
    yield int(url.rpartition(":")[2])
    server.stop()


def asked(port: int, body: Json, pool: str = "resize") -> tuple[int, Json]:
    shown = Visitor(port, headers={"content-type": "application/json"}).once(
        "POST", f"/v1/pools/{pool}/what-if", json.dumps(body)
    )
    return shown.status, json.loads(shown.html)


def test_other_settings_are_simulated_beside_those_in_force(port: int) -> None:
    arrivals = [[1_000_000 + number, 5.0] for number in reversed(range(40))]
    status, found = asked(port, {"arrivals": arrivals, "max_workers": 8, "slo_seconds": 10})
    assert (status, found["tasks"], found["seconds"]) == (200, 40, 39.0)
    before, after = found["unchanged"], found["changed"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert (before["slo_seconds"], after["slo_seconds"]) == (30.0, 10.0)
    assert before["peak"] <= 2 < after["peak"]
    assert after["wait_p99"] < before["wait_p99"]


@pytest.mark.parametrize(
    ("pool", "body", "status", "said"),
    [
        pytest.param("nope", {"arrivals": [[0, 1]]}, 404, "there is no pool 'nope'", id="unknown pool"),
        pytest.param("resize", {"arrivals": []}, 422, "at least 1", id="no arrivals"),
        pytest.param("resize", {"arrivals": [[0, 1]], "min_workers": 9}, 422, "min", id="more at least than at most"),
    ],
)
def test_what_can_not_be_simulated_is_refused_with_the_reason(
    port: int, pool: str, body: Json, status: int, said: str
) -> None:
    answered, problem = asked(port, body, pool)
    assert answered == status, problem
    assert said in str(problem["detail"])


def test_one_simulation_runs_at_a_time(port: int) -> None:
    with what_if._ONE_AT_A_TIME:
        status, problem = asked(port, {"arrivals": [[0, 1]]})
    assert (status, str(problem["type"]).rpartition(":")[2]) == (503, "simulation-under-way")


def test_one_that_takes_too_long_is_ended(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "MAX_SECONDS", 0.05)
    status, problem = asked(port, {"arrivals": [[0, 1]]})
    assert (status, str(problem["type"]).rpartition(":")[2]) == (422, "simulation-too-long")
    assert "take a shorter window" in str(problem["detail"])


def test_the_page_simulates_a_csv_and_writes_the_settings(port: int) -> None:
    visitor = Visitor(port)
    assert "Nothing is changed" in visitor.get("pools/resize/what-if").text
    shown = visitor.post("pools/resize/what-if", {"csv": CSV, "max": "8", "slo": "10"})
    assert "40 tasks in 39 s" in shown.text
    assert "Worker-hours" in shown.text
    assert 'pools: "resize": slo: 10s workers: {min: 0, max: 8}' in shown.text


def test_the_page_simulates_the_history_of_the_pools_queue(port: int) -> None:
    assert "3 tasks in" in Visitor(port).post("pools/resize/what-if", {"window": "900", "max": "4"}).text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"csv": "a,b\n1,2"}, "the first line must name the columns"),
        ({"csv": "arrival_s,service_s\n1,x"}, "line 2: '1,x' has no two numbers"),
        ({"csv": CSV, "slo": "soon"}, "slo: write a number, not 'soon'"),
        ({"csv": CSV, "min": "5", "max": "3"}, "min"),
    ],
)
def test_a_mistake_is_shown_on_the_page(port: int, fields: dict[str, str], said: str) -> None:
    shown = Visitor(port).post("pools/resize/what-if", fields)
    assert (shown.status, said in shown.text) == (200, True), shown.text


def test_a_form_of_another_site_is_refused(port: int) -> None:
    assert Visitor(port).post("pools/resize/what-if", {"csv": CSV}, **{"sec-fetch-site": "cross-site"}).status == 403


def test_an_uploaded_file_is_read(port: int) -> None:
    parts = f'--B\r\ncontent-disposition: form-data; name="file"; filename="a.csv"\r\n\r\n{CSV}\r\n--B--\r\n'
    visitor = Visitor(port, headers={"content-type": "multipart/form-data; boundary=B", **SAME_ORIGIN})
    assert "40 tasks in 39 s" in visitor.once("POST", "/console/pools/resize/what-if", parts).text


def test_leases_become_arrivals_of_the_pools_tags_in_the_window() -> None:
    def lease(tag: str | None, ended: float, *, held: float = 1.0, waited: float = 2.0) -> Json:
        return {"tag": tag, "ended_at": round(ended * 1e6), "held_seconds": held, "waited_seconds": waited}

    leases = [lease("a", 20), lease("b", 10), lease(None, 15), lease("a", 4)]
    within = {"since_seconds": 5.0, "until_seconds": 100.0}
    assert arrivals_of(leases, tags=["a", "b"], **within) == [(7.0, 1.0), (17.0, 1.0)]
    assert arrivals_of(leases, tags=[], **within) == [(7.0, 1.0), (12.0, 1.0), (17.0, 1.0)]
    assert arrivals_of(leases, tags="untagged", **within) == [(12.0, 1.0)]


def test_a_csv_may_have_other_columns_and_any_order() -> None:
    assert read_arrivals("service_s,name,arrival_s\n2,x,9\n1,y,3\n") == [(3.0, 1.0), (9.0, 2.0)]
    with pytest.raises(ValueError, match="finite"):
        read_arrivals("arrival_s,service_s\nnan,1\n")
