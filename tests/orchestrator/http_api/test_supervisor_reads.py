"""What a supervisor knows, over HTTP: decisions, why, workers with what they hold and write, deaths."""

import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlencode

import pytest

from orchestrator.http_api.fleet_now import OwnQueues
from orchestrator.http_api.listener import FleetListener
from orchestrator.http_api.paths import fleet_paths
from orchestrator.state.directory import StateDir
from queue_core.client.connect import open_queues
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, QueueSpec
from queue_core.verbs.roles import Role
from tests.support.fleet.fleet_views import a_heartbeat

Json = dict[str, object]
SECRETS: Final = {role: f"{role.name}-secret-0123456789" for role in Role}
STORY: Final = [(10.0, 0, 2), (20.0, 2, 5), (30.0, 5, 3), (40.0, 3, 0)]
SNAPSHOT: Final[Json] = {
    "phase": "leading",
    "shown_at": 40.0,
    "pools": {
        "resize": {
            "settings": {"queue": "thumbs", "tags": [], "slo_seconds": 30.0, "start": "auto", "app": "tasks:app"},
            "decision": {"at": 40.0, "pool": "resize", "current": 3, "target": 0, "why": "idle"},
            "states": ["resting"],
            "sample": {"cursor": 0},
        }
    },
    "workers": [
        {
            "worker": "resize-abc",
            "pool": "resize",
            "state": "idle",
            "since": 40.0,
            "spawned_at": 1.0,
            "cpu_seconds": 2.5,
        }
    ],
}


class Site:
    """A supervisor's listener beside a queue server, and its state directory."""

    def __init__(self, folder: Path) -> None:
        self.files = StateDir(folder / "state")
        self.files.path.mkdir()
        self.queues = OwnQueues()
        self.server = ServerThread(MemoryStore(), ServeOptions(port=0))
        tokens = tuple(AccessToken(role, secret) for role, secret in SECRETS.items())
        heartbeat, self.clock = a_heartbeat()
        self.listener = FleetListener(
            ServeOptions(port=0, tokens=tokens),
            fleet_paths(heartbeat, self.clock, files=self.files, queues=self.queues),
        )

    def begin(self) -> None:
        self.queues.locate(self.server.start(), token=None)
        self.listener.start()

    def stop(self) -> None:
        self.listener.stop()
        self.queues.close()
        self.server.stop()

    def connect(
        self, path: str, role: Role = Role.VIEWER, *, last_event_id: str = ""
    ) -> tuple[HTTPConnection, HTTPResponse]:
        connection = HTTPConnection(self.listener.url.removeprefix("http://"), timeout=10)
        connection.request(
            "GET", path, headers={"authorization": f"Bearer {SECRETS[role]}", "last-event-id": last_event_id}
        )
        return connection, connection.getresponse()

    def get(self, path: str, role: Role = Role.VIEWER, **query: object) -> tuple[int, Json]:
        asked = f"?{urlencode(query)}" if query else ""
        self.clock.advance(1.0)  # figures of now are shared for a second
        connection, answer = self.connect(path + asked, role)
        found = json.loads(answer.read())
        connection.close()
        return answer.status, found

    def write(self, worker: str, text: str) -> None:
        folder = self.files.path / "workers"
        folder.mkdir(exist_ok=True)
        with (folder / f"{worker}.log").open("a") as file:
            file.write(text)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    site.files.write_snapshot(SNAPSHOT)
    for at, current, target in STORY:
        told = {"at": at, "pool": "resize", "current": current, "target": target, "why": f"to {target}"}
        site.files.decisions.append(told)
        site.files.decisions.append({**told, "pool": "other"})
        site.files.replays.append({"at": at, "pool": "resize", "inputs": {"number": target}})
    site.files.deaths.append({"at": -1.0, "worker": "resize-idle", "pool": "resize", "cause": "drained"})
    for number in range(3):
        death = {"at": 10.0 * number, "worker": f"resize-dead{number}", "pool": "resize", "cause": "crashed"}
        site.files.deaths.append(death | {"detail": "code 1", "last_lines": ["secret"], "held_total": 1})
    site.begin()
    yield site
    site.stop()


def ats(answer: Json) -> list[float]:
    return [one["at"] for one in cast("list[dict[str, float]]", answer["decisions"])]


def test_decisions_come_page_by_page_newest_first(site: Site) -> None:
    code, first = site.get("/v1/pools/resize/decisions", limit=3)
    assert (code, ats(first), first["before"]) == (200, [40.0, 30.0, 20.0], 20.0)
    _, second = site.get("/v1/pools/resize/decisions", limit=3, before=first["before"])
    assert (ats(second), second["before"]) == ([10.0], None)


def test_why_tells_the_decision_in_force_now_and_at_a_time(site: Site) -> None:
    code, now = site.get("/v1/pools/resize/why", last=2)
    assert (code, ats(now), cast("Json", now["now"])["why"]) == (200, [40.0, 30.0], "idle")
    assert cast("Json", now["settings"])["start"] == "auto"
    _, then = site.get("/v1/pools/resize/why", at=25, full="true")
    assert cast("Json", then["now"])["target"] == 5
    assert (ats(then), then["inputs"], then["settings"]) == ([20.0, 10.0], {"number": 5}, None)
    assert site.get("/v1/pools/resize/why", at=5)[1]["now"] is None


@pytest.mark.parametrize("path", ["/v1/pools/resise/why", "/v1/pools/resise/decisions"])
def test_a_pool_that_is_not_there_is_named(site: Site, path: str) -> None:
    code, told = site.get(path)
    assert code == 404
    assert "did you mean 'resize'" in str(told["detail"])


def test_a_query_that_is_not_known_is_refused(site: Site) -> None:
    assert site.get("/v1/pools/resize/decisions", limit=0)[0] == 422
    assert site.get("/v1/pools/resize/decisions", page=2)[0] == 422
    assert site.get("/v1/deaths/resize-dead1", page=2)[0] == 422


def test_a_worker_shows_what_it_uses_and_holds_now(site: Site) -> None:
    queues = open_queues(site.server.url)
    queues.put_queue(QueueSpec("thumbs"))
    queue = queues.queue("thumbs")
    queue.add([NewTask(b"x", name="cat-1")])
    lease = queue.lease(worker="resize-abc")
    code, told = site.get("/v1/workers/resize-abc")
    worker = cast("Json", told["worker"])
    queue.release(lease)
    queues.close()
    assert (code, told["trouble"]) == (200, "")
    assert (worker["state"], worker["cpu_seconds"]) == ("busy", 2.5)
    assert [one["task"] for one in cast("list[Json]", worker["tasks"])] == ["cat-1"]
    code, every = site.get("/v1/workers", pool="resize")
    assert [one["worker"] for one in cast("list[Json]", every["workers"])] == ["resize-abc"]
    assert site.get("/v1/workers", pool="other")[1]["workers"] == []


def test_a_worker_that_is_gone_leads_to_its_certificate(site: Site) -> None:
    code, told = site.get("/v1/workers/resize-dead1")
    assert code == 404
    assert "/v1/deaths/resize-dead1" in str(told["detail"])
    assert "did you mean 'resize-abc'" in str(site.get("/v1/workers/resize-abd")[1]["detail"])


def test_failures_alone_are_listed_without_workers_that_were_asked_to_finish(site: Site) -> None:
    def names(**query: object) -> list[object]:
        return [one["worker"] for one in cast("list[Json]", site.get("/v1/deaths", **query)[1]["deaths"])]

    assert "resize-idle" in names()
    assert names(failures="true") == ["resize-dead2", "resize-dead1", "resize-dead0"]
    fleet = cast("list[Json]", site.get("/v1/fleet")[1]["deaths"])
    assert [one["worker"] for one in fleet] == ["resize-dead2", "resize-dead1", "resize-dead0"]


def test_deaths_are_listed_without_a_line_of_theirs_and_told_whole_to_whom_may_read_events(site: Site) -> None:
    code, first = site.get("/v1/deaths", Role.PRODUCER, limit=2)
    listed = cast("list[Json]", first["deaths"])
    assert (code, [one["worker"] for one in listed], first["before"]) == (200, ["resize-dead2", "resize-dead1"], 10.0)
    assert "secret" not in json.dumps(first)
    assert [one["worker"] for one in cast("list[Json]", site.get("/v1/deaths", before=10.0)[1]["deaths"])] == [
        "resize-dead0",
        "resize-idle",
    ]
    assert site.get("/v1/deaths/resize-dead1", Role.PRODUCER)[0] == 403
    code, told = site.get("/v1/deaths/resize-dead1")
    assert (code, cast("Json", told["death"])["last_lines"]) == (200, ["secret"])
    assert cast("Json", told["settings"])["app"] == "tasks:app"


@pytest.mark.parametrize(
    ("worker", "said"),
    [
        pytest.param("resize-dead", "3 dead workers' names begin with", id="several"),
        pytest.param("resize-abc", "resize-abc has not died", id="alive"),
        pytest.param("nobody", "no death of a worker 'nobody' is on record", id="unknown"),
    ],
)
def test_a_certificate_that_is_not_there_says_why(site: Site, worker: str, said: str) -> None:
    code, told = site.get(f"/v1/deaths/{worker}")
    assert code == 404
    assert said in str(told["detail"])


def lines_of(told: Json) -> list[str]:
    return [one["line"] for one in cast("list[dict[str, str]]", told["lines"])]


def test_the_end_of_a_log_is_bounded_and_harmless(site: Site) -> None:
    site.write("resize-wide", "\x1b[31mred\x1b[0m \u202eevil\n")
    code, told = site.get("/v1/workers/resize-wide/log", tail=5)
    assert (code, lines_of(told), told["is_cut"]) == (200, ["\\x1b[31mred\\x1b[0m \\u202eevil"], False)
    site.write("resize-long", "".join(f"{number:01000}\n" for number in range(100)))
    _, told = site.get("/v1/workers/resize-long/log", tail=100)
    assert (len(lines_of(told)), told["is_cut"]) == (65, True)
    assert lines_of(told)[-1] == f"{99:01000}"
    site.write("resize-one", "x" * 70_000 + "\n")
    assert [len(line) for line in lines_of(site.get("/v1/workers/resize-one/log")[1])] == [65_536]


def test_a_log_needs_the_permission_of_events_and_a_whole_name(site: Site) -> None:
    site.write("resize-abc", "x\n")
    assert site.get("/v1/workers/resize-abc/log", Role.PRODUCER)[0] == 403
    assert site.get("/v1/workers/resize-ab/log")[0] == 404
    assert "there is no pool or worker 'nobody'" in str(site.get("/v1/workers/nobody/log")[1]["detail"])


def an_event(answer: HTTPResponse) -> tuple[str, Json]:
    """Read the next event of a stream."""
    name = ""
    while line := answer.readline().decode().rstrip("\n"):
        if line.startswith("id: "):
            name = line.removeprefix("id: ")
        if line.startswith("data: "):
            answer.readline()
            return name, json.loads(line.removeprefix("data: "))
        if line == ": towline":
            answer.readline()
    raise AssertionError("the stream has ended")


def test_a_log_is_followed_and_goes_on_where_a_stream_was_cut(site: Site) -> None:
    site.write("resize-tale", "one\ntwo\n")
    connection, answer = site.connect("/v1/workers/resize-tale/log?tail=1&follow=true")
    assert answer.getheader("content-type", "").startswith("text/event-stream")
    cursor, told = an_event(answer)
    assert lines_of(told) == ["two"]
    connection.close()
    site.write("resize-tale", "three\n")
    connection, answer = site.connect("/v1/workers/resize-tale/log?follow=true", last_event_id=cursor)
    assert lines_of(an_event(answer)[1]) == ["three"]
    connection.close()
    assert site.get("/v1/workers/resize-tale/log", tail=0)[1]["lines"] == []
    connection, answer = site.connect("/v1/workers/resize-tale/log?follow=true", last_event_id="nonsense")
    assert answer.status == 400
    connection.close()


def test_a_stream_ends_when_its_listener_stops(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write("resize-a", "x\n")
    site.begin()
    connection, answer = site.connect("/v1/workers/resize-a/log?follow=true")
    an_event(answer)
    stopping = threading.Thread(target=site.stop)
    stopping.start()
    assert answer.read() == b""
    stopping.join()
    connection.close()


def test_before_anything_is_published_it_says_so(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.begin()
    try:
        assert site.get("/v1/workers")[0] == 503
        assert site.get("/v1/pools/resize/why")[0] == 404
        assert site.get("/v1/deaths")[1] == {"deaths": [], "before": None}
    finally:
        site.stop()


def test_the_document_has_every_path(site: Site) -> None:
    _, described = site.get("/openapi.json")
    paths = cast("dict[str, dict[str, Json]]", described["paths"])
    assert {"/v1/workers", "/v1/workers/{worker}/log", "/v1/deaths/{worker}", "/v1/pools/{pool}/why"} <= paths.keys()
    of_log = paths["/v1/workers/{worker}/log"]["get"]
    assert {"worker", "tail", "follow"} == {one["name"] for one in cast("list[Json]", of_log["parameters"])}
    assert "text/event-stream" in json.dumps(of_log["responses"])
    assert "requestBody" in paths["/v1/pools/{pool}/scale"]["post"]
