"""What commands say of a cluster: doctor's rights and refusals in the server's words, and the output of Pods."""

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.cluster_findings import cluster_findings
from orchestrator.cli.pod_logs import PodReader
from orchestrator.runtimes.composite import key_of, key_of_ref
from orchestrator.settings_file import Project, parse
from queue_core.cli.failure import CommandError
from tests.support.fleet.pods import a_pod_seen, running

FILE = """
queues: {thumbs: {max_leases: 5}}
pools:
  resize: {queue: thumbs, app: "tasks:app", slo: 30s, runtime: {kubernetes: {image: "thumbs:1", url: "http://queue:7878"}}}
"""
LOG = "2026-11-29T12:00:01.500000000Z up\n2026-11-29T12:00:02.500000000Z done\n"


@dataclass
class Answers:
    """The answers of an apiserver by method and the last part of the path, and the bodies that it got."""

    known: dict[str, tuple[int, Any]] = field(default_factory=dict)
    got: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def of(self, method: str, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        self.got.append((f"{method} {path}", body))
        for part, answer in self.known.items():
            if part in f"{method} {path}":
                return answer
        if path.endswith("selfsubjectaccessreviews"):
            return 201, {"status": {"allowed": True}}
        return 200, {"metadata": {"uid": "u1", "resourceVersion": "1"}, "items": []}


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    """An apiserver on loopback, of which KUBECONFIG knows."""
    known = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            status, answer = known.of(self.command, self.path, body)
            data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET  # noqa: N815  as the base class has it

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "me", "user": {"token": "t"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "me", "namespace": "fleet"}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    yield known
    server.shutdown()
    server.server_close()


def a_project(folder: Path) -> Project:
    return parse(FILE, name="towline.yaml", directory=folder)


def found_in(folder: Path) -> dict[str, str]:
    return {finding.found: finding.level for finding in cluster_findings(a_project(folder))}


def test_a_cluster_that_would_take_each_pools_pod_is_well(answers: Answers, tmp_path: Path) -> None:
    (said,) = found_in(tmp_path)
    assert said.endswith("answers: context here, namespace fleet; for resize")
    (dry_run,) = [path for path, _ in answers.got if path.startswith("POST") and "/pods" in path]
    assert dry_run.endswith("?dryRun=All&fieldValidation=Strict")


def test_a_right_that_is_missing_and_a_pod_that_is_refused_are_told_in_the_servers_words(
    answers: Answers, tmp_path: Path
) -> None:
    answers.known["selfsubjectaccessreviews"] = (201, {"status": {"allowed": False}})
    answers.known["dryRun"] = (403, {"kind": "Status", "reason": "Forbidden", "message": "exceeded quota: q"})
    found = found_in(tmp_path)
    assert found["we may not create pods in namespace fleet"] == "bad"
    assert found["we may not get pods/log in namespace fleet"] == "warn"
    assert found["pool resize: its Pod is refused: exceeded quota: q"] == "bad"


def test_a_namespace_without_an_anchor_is_told(answers: Answers, tmp_path: Path) -> None:
    answers.known["configmaps"] = (404, {"kind": "Status", "reason": "NotFound", "message": "not found"})
    said = "context here, namespace fleet has no ConfigMap towline-fleet, which owns the fleet's Pods"
    assert found_in(tmp_path)[said] == "bad"


def test_a_cluster_that_does_not_answer_is_told_with_the_pools_that_need_it(
    answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answers.got == []
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "gone"))
    (said,) = found_in(tmp_path)
    assert said.startswith("there is no kubeconfig at")
    assert said.endswith("needed by resize")


def test_the_output_of_pods_is_read_by_the_log_and_followed_without_a_line_twice(
    answers: Answers, tmp_path: Path
) -> None:
    answers.known["/log"] = (200, LOG)
    answers.known["/pods?"] = (200, {"metadata": {"resourceVersion": "1"}, "items": [a_pod_seen(running())]})
    reader = PodReader(list(a_project(tmp_path).pools.values()), environment={"KUBECONFIG": str(tmp_path / "config")})
    lines = reader.last("resize", lines=10, since=None).lines
    assert [(line.worker, line.text) for line in lines] == [("resize-7f3k2q", "up"), ("resize-7f3k2q", "done")]
    reader.follow("resize")
    answers.known["/log"] = (200, f"{LOG}2026-11-29T12:00:03.000000000Z again\n")
    assert [line.text for line in reader.new().lines] == ["again"]
    assert reader.new().lines == []
    reader.close()


def test_the_output_of_a_pod_that_is_gone_is_told_to_be_in_its_certificate(answers: Answers, tmp_path: Path) -> None:
    reader = PodReader(list(a_project(tmp_path).pools.values()), environment={"KUBECONFIG": str(tmp_path / "config")})
    with pytest.raises(CommandError, match="there is no Pod of resize-7f3k2q now"):
        reader.last("resize-7f3k2q", lines=10, since=None)
    assert answers.got


def test_a_pods_ref_belongs_to_the_runtime_of_its_context_and_namespace(tmp_path: Path) -> None:
    pool = a_project(tmp_path).pools["resize"]
    assert key_of(pool) == "kubernetes"
    assert key_of_ref("kubernetes:here/fleet#towline-resize-7f3k2q") == "kubernetes at here/fleet"
