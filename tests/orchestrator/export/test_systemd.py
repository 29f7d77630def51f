"""Pools by systemd: what is written is valid there, no value breaks out of it, and what can't be is refused."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.export.request import ExportRefusedError, ExportRequest
from orchestrator.export.systemd import systemd
from queue_core.cli.exits import UNAVAILABLE
from tests.support.commands import ROOT, Commands
from tests.support.fleet.export_requests import SETTINGS, a_request


def reload_of(unit: str) -> str:
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecReload=")]
    return line.partition("=")[2]


def units(request: ExportRequest, folder: Path) -> list[Path]:
    paths = []
    for name, text in systemd(request).files.items():
        (folder / name).write_text(text, encoding="utf-8")
        paths.append(folder / name)
    return paths


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_units_are_ones_that_systemd_takes(tmp_path: Path) -> None:
    text = SETTINGS.replace("    app: tasks:app\n", '    command: [/bin/sh, "-c", "echo $HOME %i %n \\"x\\""]\n')
    paths = units(a_request(text, program=(sys.executable, "-m", "orchestrator")), tmp_path)
    assert {path.name for path in paths} == {
        "towline-queue.service",
        "towline-supervisor.service",
        "towline-worker-resize@.service",
    }
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, paths)], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")


def test_a_reload_is_the_command_that_tells_what_came_of_it(towline: Commands) -> None:
    path = towline.folder / "my towline.yaml"
    path.write_text(SETTINGS)
    request = a_request(program=("/opt/towline/bin/towline",), settings_path=str(path))
    exported = systemd(request).files["towline-supervisor.service"]
    program, *words = shlex.split(reload_of(exported))
    assert (program, words[0]) == ("/opt/towline/bin/towline", "reload")
    assert towline(*words).code == UNAVAILABLE  # it is asked of the supervisor of these settings; there is none
    for name in ("towline.service", "towline-supervisor.service"):
        assert shlex.split(reload_of((ROOT / "deploy" / "systemd" / name).read_text())) == [program, words[0]]


def test_a_worker_reads_no_file_in_which_the_secrets_of_server_and_store_are() -> None:
    files = systemd(a_request()).files
    read = {
        name: [line.partition("=")[2] for line in text.splitlines() if line.startswith("EnvironmentFile=")]
        for name, text in files.items()
    }
    assert read["towline-queue.service"] == read["towline-supervisor.service"] == ["-/etc/towline/environment"]
    assert read["towline-worker-resize@.service"] == [
        "-/etc/towline/worker-environment",
        "/etc/towline/worker-resize.env",
    ]
    assert "/etc/towline/worker-environment" in files["towline-worker-resize@.service"].split("[Unit]")[0]


def test_no_value_breaks_out_of_its_line_in_a_unit() -> None:
    text = systemd(a_request()).files["towline-worker-resize@.service"]
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    keys = {line.partition("=")[0] for line in lines if not line.startswith("[")}
    assert all(key.isalpha() for key in keys), keys
    assert [line for line in lines if line.startswith("[")] == ["[Unit]", "[Service]", "[Install]"]
    assert r'Environment="TOWLINE_TAGS=[\"resize\", ' in text


def test_a_worker_without_a_full_path_is_refused_where_systemd_wants_one() -> None:
    text = SETTINGS.replace("    app: tasks:app\n", "    command: [python, commands/work.py]\n")
    with pytest.raises(ExportRefusedError, match=r"pools\.resize\.command: python: systemd wants"):
        systemd(a_request(text))


def test_a_worker_of_celerys_needs_the_full_path_of_its_python() -> None:
    celery = "    celery: {app: proj}\n"
    other = SETTINGS.replace('    queue: thumbs\n    tags: [resize, "12:30", "yes"]\n    app: tasks:app\n', celery)
    with pytest.raises(ExportRefusedError) as refused:
        systemd(a_request(other))
    assert "pools.resize.celery.python: left out: systemd wants the full path" in str(refused.value)
    named = other.replace("{app: proj}", "{app: proj, python: /srv/venv/bin/python}")
    unit = systemd(a_request(named)).files["towline-worker-resize@.service"]
    assert "ExecStart=/srv/venv/bin/python -m queue_core.kombu.worker -A proj worker -Q celery" in unit
    assert "KillMode=mixed" in unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_units_are_as_hardened_as_those_that_are_shipped(tmp_path: Path) -> None:
    def exposure(path: Path) -> str:
        command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)]
        last = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
        return last.partition("service: ")[2]

    shipped = {exposure(path) for path in (ROOT / "deploy" / "systemd").glob("*.service")}
    assert {exposure(path) for path in units(a_request(), tmp_path)} <= shipped


def test_units_run_as_a_user_of_their_own_who_may_write_to_the_state_alone() -> None:
    inside = SETTINGS.replace("sqlite:///queue.db", "sqlite:////var/lib/towline/queue.db")
    inside += "supervisor: {state_dir: /var/lib/towline/supervisor}\n"
    files = systemd(a_request(inside)).files
    for text in files.values():
        assert "\nUser=towline\n" in text
        assert "\nProtectSystem=strict\n" in text
        assert "\nReadWritePaths=" not in text
    elsewhere = systemd(a_request()).files["towline-queue.service"]
    assert "ReadWritePaths=-/srv/thumbs\n" in elsewhere
    assert "useradd --system towline" in elsewhere
    assert "ReadWritePaths" not in systemd(a_request()).files["towline-worker-resize@.service"]
