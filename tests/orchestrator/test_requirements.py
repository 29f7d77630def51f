"""What is installed is what was declared, locked and tested: imports, bounds, the lock, and pip's lists of it."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

import run
from tests.support.requirement_lists import APART, EXTRAS, FOLDER, LOWEST, LOWEST_EXTRAS, ROOT, WHOLE, entries, head

OURS: Final = {"queue_core", "orchestrator"}
DISTRIBUTIONS: Final = {
    "google": "google-cloud-tasks",
    "grpc": "grpcio",
    "opentelemetry": "opentelemetry-api",
    "yaml": "pyyaml",
}
"""Of packages that are called otherwise."""
OPTIONAL: Final = {
    "queue_core/google/appengine/stub.py": {"google"},
    "queue_core/google/appengine/connect.py": {"google"},
    "queue_core/testing/pytest_plugin.py": {"pytest"},
    "queue_core/kombu/worker.py": {"celery"},
    "orchestrator/cli/celery_apps/reader.py": {"celery"},
}
"""What brings the rest: a program that calls this has App Engine's SDK or Celery; pytest itself loads its plugin."""
UNBOUNDED: Final = {"apsw", "defusedxml", "structlog", "tzdata"}
"""Their versions are dates, SQLite's, or have not changed for years; of each the public parts alone are used."""

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())


def name_of(requirement: str) -> str:
    found = re.match(r"[a-zA-Z0-9._-]+", requirement)
    assert found, requirement
    return found[0].lower().replace("_", "-")


def declared() -> list[str]:
    """What a user of the project may install."""
    project = PROJECT["project"]
    return [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]


def imports() -> Iterator[tuple[str, str]]:
    """Files of the packages, and the package outside of them that each imports, anywhere in it."""
    for package in OURS:
        for file in sorted((ROOT / package).rglob("*.py")):
            where = str(file.relative_to(ROOT))
            for node in ast.walk(ast.parse(file.read_text())):
                modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    modules = [node.module]
                for module in modules:
                    top = module.partition(".")[0]
                    if top not in {*sys.stdlib_module_names, *OURS, "annotationlib"}:  # Python's own since 3.14
                        yield where, top


@cache
def locked() -> dict[tuple[str, str], set[str]]:
    """Hashes of the lock by name and version."""
    packages: list[dict[str, Any]] = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    return {
        (package["name"], package["version"]): {
            file["hash"] for file in (*package.get("wheels", ()), package.get("sdist", {"hash": ""})) if file["hash"]
        }
        for package in packages
        if "registry" in package["source"]
    }


def listed(name: str) -> dict[str, tuple[str, set[str]]]:
    """Version and hashes by name, of one of pip's lists."""
    found = {}
    for entry in entries((FOLDER / f"{name}.txt").read_text()):
        pinned = re.match(r"([a-z0-9.-]+)==([^ ;]+)", entry)
        assert pinned, entry
        found[pinned[1]] = (pinned[2], set(re.findall(r"--hash=(\S+)", entry)))
    return found


def numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"[0-9]+", version)]


def floor_of(requirement: str) -> str:
    found = re.search(r">=([0-9.]+)", requirement)
    assert found, f"{requirement} has no lowest version"
    return found[1]


DANGEROUS: Final = {
    "django": ("4.2.27", "CVE-2025-64460, CVE-2025-64459, CVE-2025-64458, CVE-2025-13372"),
    "grpcio": ("1.68.1", "CVE-2024-11407"),
    "jinja2": ("3.1.6", "CVE-2025-27516, CVE-2024-56326"),
    "requests": ("2.32.4", "CVE-2024-47081, CVE-2024-35195"),
    "starlette": ("1.3.1", "CVE-2026-48710, CVE-2025-62727, CVE-2025-54121"),
    "urllib3": (
        "2.7.0",
        "CVE-2026-44432, CVE-2026-44431, CVE-2026-21441, CVE-2025-66471, CVE-2025-66418, CVE-2025-50181",
    ),
}
"""The first version of a package without the holes named: no environment may have an older one (SECURITY.md)."""
GOOGLES: Final = ("urllib3", "1.26.20")
"""Allowed, as Google's App Engine SDK asks for less than 2; nobody else gets it."""


@pytest.mark.parametrize("requirement", declared())
def test_a_lowest_version_has_no_known_hole(requirement: str) -> None:
    name, floor = name_of(requirement), floor_of(requirement)
    first, holes = DANGEROUS.get(name, ("0", ""))
    if (name, floor) != GOOGLES:
        assert numbers(floor) >= numbers(first), holes
        return
    excluded = re.findall(r"!=([0-9]+\.[0-9]+)\.\*", requirement)
    assert [f"2.{minor}" for minor in range(numbers(first)[1])] == excluded, holes


@pytest.mark.parametrize("name", ["runtime", "dev", *EXTRAS, LOWEST])
def test_no_list_has_a_package_with_a_known_hole(name: str) -> None:
    for package, (first, holes) in DANGEROUS.items():
        version = listed(name).get(package, (first,))[0]
        assert (package, version) == GOOGLES or numbers(version) >= numbers(first), (package, version, holes)
    assert name in ("dev", LOWEST) or ("urllib3", listed(name).get("urllib3", ("",))[0]) != GOOGLES


def test_each_package_that_had_holes_is_named_where_people_look() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    for package, (first, holes) in DANGEROUS.items():
        assert f"| `{package}` | {first} | {holes} |" in text


def test_the_list_of_lowest_versions_is_what_the_project_allows() -> None:
    """`python3 -m tests.support.requirement_lists` writes it."""
    found, extras = listed(LOWEST), PROJECT["project"]["optional-dependencies"]
    for requirement in (
        *PROJECT["project"]["dependencies"],
        *(one for extra in LOWEST_EXTRAS for one in extras[extra]),
    ):
        version, hashes = found[name_of(requirement)]
        floor = numbers(floor_of(requirement))
        assert ([*numbers(version), 0])[: len(floor)] == floor, requirement
        assert hashes


def test_every_package_that_is_imported_is_declared() -> None:
    names = {name_of(one) for one in declared()}
    missing = {
        (where, top)
        for where, top in imports()
        if DISTRIBUTIONS.get(top, top).replace("_", "-") not in names and top not in OPTIONAL.get(where, ())
    }
    assert missing == set()


@pytest.mark.parametrize("requirement", [one for one in declared() if name_of(one) not in UNBOUNDED])
def test_a_requirement_says_as_far_as_what_it_was_tested_with(requirement: str) -> None:
    assert re.search(r">=[0-9.]+(,!=[0-9.]+\.\*)*,<[0-9.]+( *;.*)?$", requirement)


@pytest.mark.parametrize("name", [*WHOLE, *EXTRAS])
def test_a_list_for_pip_is_what_the_lock_has_with_all_its_hashes(name: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text()
    assert text.startswith(head()), "run `python3 -m tests.support.requirement_lists`"
    for package, (version, hashes) in listed(name).items():
        assert hashes, package
        assert hashes == locked()[package, version], package


@pytest.mark.parametrize("kind", run.KINDS)
def test_an_environment_gets_all_that_its_kind_asks_for(kind: str) -> None:
    groups = PROJECT["dependency-groups"]
    asked = [*PROJECT["project"]["dependencies"], *(one for group in run.KINDS[kind] for one in groups[group])]
    assert {name_of(one) for one in asked} <= {*listed(kind)}


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_gets_all_that_it_asks_for(extra: str) -> None:
    asked = PROJECT["project"]["optional-dependencies"][extra]
    assert {name_of(one) for one in asked} <= {*listed(extra), *listed("runtime")}


def test_what_the_build_asks_for_is_locked_too() -> None:
    assert {name_of(one) for one in PROJECT["build-system"]["requires"]} <= {*listed("build")}


@pytest.mark.parametrize("package", ["kombu", "redis", "urllib3"])
def test_no_group_holds_back_what_users_get(package: str) -> None:
    versions = [version for name, version in locked() if name == package]
    newest = max(versions, key=lambda version: [int(part) for part in version.split(".")])
    assert len(versions) > 1, "nothing is resolved apart: neither the peers nor App Engine's SDK want an older one"
    assert (listed("runtime") | listed("redis"))[package][0] == newest


@pytest.mark.parametrize("name", APART)
def test_a_list_of_packages_beside_the_environment_has_all_it_is_for_with_hashes(name: str) -> None:
    found = listed(name)
    assert all(hashes for _, hashes in found.values())
    assert {name_of(one) for one in APART[name]} <= {*found, *listed("dev")}


def test_source_distributions_are_never_built_as_their_build_would_come_without_a_hash() -> None:
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    assert [one["name"] for one in packages if "registry" in one["source"] and not one.get("wheels")] == []
    for file in (Path(run.__file__), ROOT / "deploy" / "Dockerfile"):
        installs = file.read_text().count("--require-hashes")
        assert installs and file.read_text().replace('", "', " ").count("--only-binary :all:") == installs
