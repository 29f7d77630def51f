"""`python3 -m tests.celery --all`: measure what "change the URL" promises, one line a claim; 1 when one is short.

`--only C1,C8`, `--celery 5.5,5.7`, `--store redis`, `--pool threads,solo` measure a part; `--json` is for programs.
"""

import argparse
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tests import celery as folder
from tests.celery.claims import POOLS, STORES, Claim, Conditions, Figure
from tests.celery.environments import NEWEST, VERSIONS, NoEnvironmentError, environment_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and return 0 when every claim is met, 1 when one is short, 2 for a wrong command."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.celery", description=__doc__)
    parser.add_argument("--all", action="store_true", help="every claim, those of versions with each of them")
    parser.add_argument("--only", type=_names, default=(), help="claims by name: C1,C8")
    parser.add_argument("--celery", type=_names, default=(), help=f"versions: {','.join(VERSIONS)}")
    parser.add_argument("--store", type=_names, default=STORES, help=f"stores: {','.join(STORES)}")
    parser.add_argument("--pool", type=_names, default=POOLS, help=f"pools: {','.join(POOLS)}")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    _check(parser, "--celery", options.celery, VERSIONS)
    _check(parser, "--store", options.store, STORES)
    _check(parser, "--pool", options.pool, POOLS)
    versions = options.celery or (VERSIONS if options.all else (NEWEST,))
    if versions != (_version_here(),):
        return _in_environments(versions, options)
    wanted = [one for one in _claims() if _is_wanted(one, options, versions[0])]
    unknown = sorted({*options.only} - {one.name for one in _claims()})
    if unknown:
        parser.error(f"no claim {', '.join(unknown)}; there are {', '.join(sorted({one.name for one in _claims()}))}")
    if not wanted and not options.celery:
        parser.error("name claims with --only, or say --all")
    return max([_measured(one, versions[0], options) for one in wanted], default=0)


def _measured(claim: Claim, version: str, options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="towline-celery-") as path:
        conditions = Conditions(version, tuple(options.store), tuple(options.pool), Path(path))
        try:
            figure = claim.measure(conditions)
        except Exception as error:  # noqa: BLE001 - one claim that can't be measured must not hide the others
            place = traceback.format_exc(limit=-3)
            figure = Figure(f"not measured: {type(error).__name__}", "measured", False, (place,))
    if options.json:
        print(json.dumps({"claim": claim.name, "title": claim.title, "celery": version, **asdict(figure)}), flush=True)
    else:
        word = "met  " if figure.is_met else "SHORT"
        head = f"{claim.name:<4} {word} {claim.title}, Celery {version}: {figure.text} (bar: {figure.bar})"
        print("\n     ".join([head, *figure.notes]), flush=True)
    return 0 if figure.is_met else 1


def _in_environments(versions: Sequence[str], options: argparse.Namespace) -> int:
    """Begin again with each version of Celery, before the project's packages."""
    given = ["--store", ",".join(options.store), "--pool", ",".join(options.pool)]
    given += ["--all"] * options.all + ["--json"] * options.json
    given += ["--only", ",".join(options.only)] if options.only else []
    worst = 0
    for version in sorted(versions, reverse=True):
        try:
            environment = environment_of(version)
        except NoEnvironmentError as error:
            print(f"tests.celery: {error}", file=sys.stderr)
            return 2
        command = [sys.executable, "-m", "tests.celery", "--celery", version, *given]
        worst = max(worst, subprocess.run(command, env={**os.environ, **environment}, check=False).returncode)
    return worst


def _claims() -> list[Claim]:
    """Return the claims of all sections that there are, in order."""
    found = [claim for module in _sections() for claim in importlib.import_module(module).claims()]
    return sorted(found, key=lambda claim: (int("".join(filter(str.isdigit, claim.name))), claim.name))


def _sections() -> Iterator[str]:
    """Name the modules of this folder that have claims; none is imported for it."""
    for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
        path = Path(folder.__path__[0]) / f"{module.name.rpartition('.')[2]}.py"
        if path.is_file() and "\ndef claims(" in path.read_text():
            yield module.name


def _is_wanted(claim: Claim, options: argparse.Namespace, version: str) -> bool:
    """Return whether to measure a claim with this version: of all, only those of versions with older ones."""
    if options.only:
        return claim.name in options.only
    return bool(options.all) and (claim.of_versions or version == NEWEST)


def _version_here() -> str:
    import celery

    return ".".join(celery.__version__.split(".")[:2])


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _check(parser: argparse.ArgumentParser, option: str, given: Sequence[str], known: Sequence[str]) -> None:
    unknown = [one for one in given if one not in known]
    if unknown:
        parser.error(f"{option}: no {', '.join(unknown)}; there are {', '.join(known)}")


if __name__ == "__main__":
    sys.exit(main())
