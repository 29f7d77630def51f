"""`{worker}` and `{pool}` in a pool's command and variables: what is replaced, what stays, what is told."""

from pathlib import Path
from typing import cast

import pytest

from orchestrator.base.errors import ConfigError
from orchestrator.config.placeholders import filled
from orchestrator.config.pools import parse_pools
from orchestrator.export.compose import compose
from orchestrator.export.keda import keda
from orchestrator.export.request import ExportRefusedError
from orchestrator.export.systemd import systemd
from orchestrator.runtime import SpawnRequest
from orchestrator.settings_file import parse
from tests.support.fleet.export_requests import a_request
from tests.support.fleet.fleet_builders import a_pool

UNTOUCHED = ["{workers}", "{ worker }", "{Worker}", "${worker}", "{{worker}}", "{{.Task.ID}}", '{"a": {}}', "{}", "}{"]
EXTERNAL = """\
store: sqlite:///queue.db
server: {tokens: [{role: admin, token_env: TOWLINE_ADMIN}]}
queues: {thumbs: {max_leases: 5}}
pools:
  resize: {queue: thumbs, runtime: external, slo: 30s, command: [/usr/bin/env, "--for={pool}"]}
"""


def test_a_worker_finds_its_name_and_its_pools_in_every_argument_and_value() -> None:
    pool = a_pool(app=None, command=["run", "--name={worker}", "{pool}/{worker}"], env={"OUT": "/srv/{worker}.csv"})
    request = SpawnRequest("resize-7f", pool)
    assert request.command == ["run", "--name=resize-7f", "resize/resize-7f"]
    assert request.variables == {"OUT": "/srv/resize-7f.csv"}


@pytest.mark.parametrize("text", UNTOUCHED)
def test_every_other_brace_stays_as_it_is(text: str) -> None:
    assert filled(text, worker="w", pool="p") == text


def test_a_workers_name_changes_no_settings_digest() -> None:
    pool = a_pool(app=None, command=["run", "{worker}"])
    assert SpawnRequest("a", pool).pool.digest() == SpawnRequest("b", pool).pool.digest()


@pytest.mark.parametrize(
    ("written", "meant"), [("{workers}", "worker"), ("{Worker}", "worker"), ("{ pool }", "pool"), ("{pools}", "pool")]
)
def test_what_is_nearly_a_placeholder_is_noted_with_its_place(written: str, meant: str) -> None:
    text = (
        "queues: {thumbs: {max_leases: 3}}\n"
        f"pools:\n  resize: {{queue: thumbs, slo: 5s, command: [run, '{written}'], env: {{A: '{written}'}}}}\n"
    )
    notes = parse(text, name="towline.yaml", directory=Path("/srv")).notes
    assert [f"{written} is no placeholder" in note and f"did you mean '{meant}'" in note for note in notes] == [
        True
    ] * 2
    assert "towline.yaml:3:" in notes[0]
    assert "pools.resize.command" in notes[0]


@pytest.mark.parametrize("text", ["{worker}", "${workers}", "{count}", "{{workers}}", '{"pool": 1}'])
def test_what_is_meant_as_it_is_is_not_noted(text: str) -> None:
    data = {"resize": {"queue": "thumbs", "slo": "5s", "command": ["run", text]}}
    settings = f"queues: {{thumbs: {{max_leases: 3}}}}\npools: {data}\n"
    assert parse(settings, name="towline.yaml", directory=Path("/srv")).notes == ()


def test_the_one_command_of_a_swarm_service_has_no_workers_name() -> None:
    pool = {"queue": "thumbs", "slo": "5s", "runtime": {"swarm": {"image": "a"}}, "command": ["run", "{worker}"]}
    with pytest.raises(ConfigError) as raised:
        parse_pools({"resize": pool})
    (problem,) = raised.value.problems
    assert problem.path == ("pools", "resize", "command", 1)
    assert "TOWLINE_WORKER" in problem.message
    assert parse_pools({"resize": {**pool, "command": ["run", "{pool}"], "env": {"A": "{worker}"}}})


def test_an_exported_pool_has_its_name_in_its_command_and_variables() -> None:
    request = a_request(EXTERNAL, env={"OUT": "/srv/{pool}"})
    for exported in (compose(request), keda(request), systemd(request)):
        assert "--for=resize" in "".join(exported.files.values())
        assert "/srv/resize" in "".join(exported.private.values())


def test_an_exported_worker_names_itself() -> None:
    request = a_request(EXTERNAL.replace("{pool}", "{worker}"), env={"OUT": "{worker}"})
    for export in (compose, keda, systemd):
        with pytest.raises(ExportRefusedError) as raised:
            export(request)
        refused = cast("tuple[str, ...]", raised.value.args)
        assert str(refused).count("names itself") == 2
