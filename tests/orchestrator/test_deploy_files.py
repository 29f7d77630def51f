"""What lies in `deploy/`, and the runbook: each is read by its own program or schema, and is true."""

import ast
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import click
import promql_parser
import pytest
import yaml

from orchestrator.cli import command
from orchestrator.cli.finding import Finding
from orchestrator.settings_file import parse
from tests.support.commands import ROOT
from tests.support.fleet.scraped_metrics import METRICS, scraped_from_a_running_fleet

DEPLOY = ROOT / "deploy"
RUNBOOK = (ROOT / "docs/how-to/runbook.md").read_text()
RUNBOOK_SHOWN = "/docs/how-to/runbook"
"""Where a listener shows it."""
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SEVERITIES = {"critical", "warning", "info"}
TARGET_LABELS = {"job", "instance"}  # what Prometheus itself gives to everything it scrapes
LONGEST_START_SECONDS = 60  # how long `up` and `serve` wait for a store

Json = dict[str, object]


def alerts() -> list[Json]:
    groups = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[Json]:
    return cast("list[Json]", json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"])


def expressions() -> list[tuple[str, str]]:
    """Every PromQL expression with where it stands, Grafana's variables filled in."""
    found = [(str(alert["alert"]), str(alert["expr"])) for alert in alerts()]
    for panel in panels():
        targets = cast("list[dict[str, str]]", panel.get("targets", []))
        found += [(str(panel["title"]), re.sub(r"\$\w+", ".*", target["expr"])) for target in targets]
    return found


def selectors(expression: object) -> Iterator[promql_parser.VectorSelector]:
    """Every metric an expression reads."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    for part in ("expr", "lhs", "rhs", "vector_selector", "args"):
        inner = getattr(expression, part, None)
        for each in inner if isinstance(inner, list) else [inner]:
            if each is not None:
                yield from selectors(each)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> METRICS:
    return scraped_from_a_running_fleet(tmp_path_factory.mktemp("fleet"))


@pytest.mark.parametrize("name", ["towline.yaml", "image.towline.yaml", "compose.towline.yaml"])
def test_every_settings_file_is_right(name: str) -> None:
    path = DEPLOY / name
    project = parse(path.read_text(), name=name, directory=DEPLOY)
    assert project.notes == ()


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_every_metric_and_label_of_alerts_and_dashboard_is_told_by_a_running_fleet(told: METRICS) -> None:
    read = 0
    for place, text in expressions():
        for selector in selectors(promql_parser.parse(text)):
            if selector.name == "up":
                continue
            read += 1
            assert selector.name in told, f"{place}: no metric {selector.name}"
            labels = {matcher.name for matcher in selector.matchers.matchers}
            assert labels - TARGET_LABELS <= told[selector.name].keys(), f"{place}: {selector.name}: {labels}"
            for matcher in selector.matchers.matchers:
                if matcher.op == promql_parser.MatchOp.Equal and matcher.name not in TARGET_LABELS:
                    assert matcher.value in told[selector.name][matcher.name], f"{place}: {matcher.value}"
    assert read > 60


def test_every_label_that_a_legend_or_a_summary_names_is_there(told: METRICS) -> None:
    everything = {label for labels in told.values() for label in labels} | TARGET_LABELS
    for panel in panels():
        for target in cast("list[dict[str, str]]", panel.get("targets", [])):
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= everything, panel["title"]
    for alert in alerts():
        for text in cast("Mapping[str, str]", alert["annotations"]).values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= everything, alert["alert"]


# -- alerts and dashboard ----------------------------------------------------------------------------------------------


def test_alerts_are_rules_as_prometheus_reads_them() -> None:
    document = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text())
    assert set(document) == {"groups"}
    assert all(set(group) <= {"name", "interval", "rules"} for group in document["groups"])
    names = [str(alert["alert"]) for alert in alerts()]
    assert len(names) == len(set(names))
    for alert in alerts():
        assert set(alert) <= {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}, alert["alert"]
        assert re.fullmatch(r"[0-9]+[smhd]", str(alert.get("for", "0s")))
        assert cast("Mapping[str, str]", alert["labels"])["severity"] in SEVERITIES
        assert set(cast("Mapping[str, str]", alert["annotations"])) == {"summary", "description", "runbook_url"}


def test_promtool_takes_the_alerts_and_they_fire_when_they_should() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool: not installed (Debian: apt-get install prometheus)")
    for arguments in (["check", "rules", "prometheus-alerts.yaml"], ["test", "rules", "prometheus-alerts.test.yaml"]):
        checked = subprocess.run([promtool, *arguments], cwd=DEPLOY, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_panels_of_the_dashboard_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for panel in panels():
        place = cast("dict[str, int]", panel["gridPos"])
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


# -- runbook -----------------------------------------------------------------------------------------------------------


def sections() -> dict[str, str]:
    """The runbook's sections by their anchors, as GitHub makes them."""
    parts = re.split(r"^### (.+)$", RUNBOOK, flags=re.MULTILINE)[1:]
    return {
        re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-"): text
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def checks_of_doctor() -> set[str]:
    """The names of all findings, from the calls that make them."""
    found = set()
    for source in sorted((ROOT / "orchestrator/cli").rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                assert isinstance(node.args[0], ast.Constant), "a finding's name is a literal"
                found.add(str(node.args[0].value))
    return found


def test_every_alert_and_every_finding_has_its_section_and_no_section_is_left_over() -> None:
    links = {str(cast("Mapping[str, str]", alert["annotations"])["runbook_url"]) for alert in alerts()}
    links |= {Finding(check, "bad", "").see for check in checks_of_doctor()}
    assert {link.partition("#")[0] for link in links} == {"docs/how-to/runbook.md", RUNBOOK_SHOWN}
    assert {link.partition("#")[2] for link in links} == set(sections())
    for alert in alerts():
        link = str(cast("Mapping[str, str]", alert["annotations"])["runbook_url"])
        assert link.endswith(f"#{str(alert['alert']).lower()}")


def test_every_section_tells_cause_check_and_cure() -> None:
    for anchor, text in sections().items():
        for part in ("Cause", "Check", "Cure"):
            assert text.count(f"- **{part}:** ") == 1, f"{anchor}: {part}"


def test_every_link_of_the_runbook_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", RUNBOOK):
        path, _, anchor = target.partition("#")
        assert not path or (ROOT / "docs/how-to" / path).is_file(), target
        assert path or anchor in sections(), target


def test_every_command_of_the_runbook_exists_with_its_options() -> None:
    lines = re.findall(r"`towline ([a-z][^`]*)`", RUNBOOK) + re.findall(r"^\$ towline ([^#\n]+)", RUNBOOK, re.MULTILINE)
    group = command()
    context = click.Context(group)
    assert len(lines) > 50
    for line in lines:
        name, *arguments = line.replace("\n", " ").split()
        found = group.get_command(context, name)
        assert found is not None, line
        options = {option for parameter in found.params for option in parameter.opts}
        assert {argument for argument in arguments if argument.startswith("-")} <= options, line


# -- the image and compose ---------------------------------------------------------------------------------------------


def test_the_dockerfile_is_for_the_classic_builder_and_runs_nobody_special() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert not re.search(r"^#\s*syntax|<<|--mount|--chmod|--link|--start-interval", text, re.MULTILINE)
    users = re.findall(r"^USER (\S+)$", text, re.MULTILINE)
    assert users[-1] == "10001:10001"
    assert re.search(r'^ENTRYPOINT \["towline"\]$', text, re.MULTILINE)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"ARG VERSION={version}\n" in text


def test_every_file_that_the_dockerfile_copies_reaches_the_builder() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert set(copied) == allowed
    assert all((ROOT / source).exists() for source in copied)


@pytest.mark.parametrize("name", ["secrets", "postgres", "queue", "supervisor", "demo"])
def test_every_service_of_compose_is_hardened(name: str) -> None:
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] in ("10001:10001", "postgres")
    assert service["mem_limit"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert "privileged" not in service
    assert not [value for value in service.get("environment", {}).values() if "password=" in str(value)]


# -- systemd -----------------------------------------------------------------------------------------------------------


def settings_of(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The units, with a program that is there."""
    folder = tmp_path_factory.mktemp("units")
    for unit in UNITS:
        (folder / unit.name).write_text(unit.read_text().replace("/opt/towline/bin/towline", "/bin/true"))
    return folder


def systemd_analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze: not installed (Debian: apt-get install systemd)")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def test_systemd_finds_nothing_wrong_with_the_units(installed: Path) -> None:
    checked = systemd_analyze("verify", "--man=no", *map(str, sorted(installed.iterdir())))
    ours = [line for line in checked.stderr.splitlines() if "towline" in line]
    assert (checked.returncode, ours) == (0, [])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_is_hardly_exposed(installed: Path, unit: Path) -> None:
    scored = systemd_analyze("security", "--offline=true", "--no-pager", "--threshold=25", str(installed / unit.name))
    if "unrecognized option" in scored.stderr:
        pytest.skip("systemd-analyze: no --offline before systemd 250")
    told = scored.stdout.strip().splitlines()[-1]
    assert scored.returncode == 0, told


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_is_restarted_but_not_with_wrong_settings_and_its_workers_have_time(unit: Path) -> None:
    settings = settings_of(unit)
    assert settings["RestartPreventExitStatus"] == ["78"]
    assert settings["Restart"][0] in ("on-failure", "always")
    assert int(settings["TimeoutStopSec"][0].removesuffix("s")) >= 30
    if settings["Type"] == ["notify"]:
        assert int(settings["TimeoutStartSec"][0].removesuffix("s")) > LONGEST_START_SECONDS
    if "towline up" in settings["ExecStart"][0] or "towline supervise" in settings["ExecStart"][0]:
        assert (settings["KillMode"], settings["OOMPolicy"]) == (["process"], ["continue"])
        assert settings["WatchdogSec"]
