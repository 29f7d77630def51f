"""Charts as Helm itself renders them, by its library or its program, in a process of its own and without a cluster."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import yaml

PROGRAM: Final = """
import json, sys
import helm_python as helm
asked = json.load(sys.stdin)
report = helm.lint(asked["chart"], values=asked["values"], strict=True, namespace=asked["namespace"])
with helm.Chart.load(asked["chart"]) as chart:
    chart.validate_schema(asked["values"])
    made = chart.render(asked["values"], name="queue", namespace=asked["namespace"])
json.dump({"lint": report, "files": made}, sys.stdout)
"""
SECONDS: Final = 60


class NoHelmError(Exception):
    """Neither Helm's library nor its program is here."""


class ChartRefusedError(Exception):
    """Helm does not take the chart, or its values; the message is Helm's."""


def rendered(chart: Path, *, namespace: str, values: Mapping[str, object] | None = None) -> dict[str, str]:
    """Return the texts of the chart's templates by their paths. Raises `NoHelmError` or `ChartRefusedError`."""
    if find_spec("helm_python") is not None:
        asked = json.dumps({"chart": str(chart), "namespace": namespace, "values": values or {}})
        done = _run([sys.executable, "-c", PROGRAM], stdin=asked)
        made = json.loads(done)
        bad = [one for one in made["lint"]["messages"] if one["severity"] > 1]
        if bad or made["lint"]["errors"]:
            raise ChartRefusedError(f"{bad} {made['lint']['errors']}")
        return dict(made["files"])
    helm = shutil.which("helm")
    if helm is None:
        raise NoHelmError("Helm is not here: neither helm-python-sdk of this environment, nor helm in PATH")
    given = ["--namespace", namespace, "--values", "-"]
    _run([helm, "lint", "--strict", *given, str(chart)], stdin=json.dumps(values or {}))
    return {"": _run([helm, "template", "queue", *given, str(chart)], stdin=json.dumps(values or {}))}


def objects(files: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the objects of rendered templates; notes are none."""
    texts = [text for path, text in files.items() if not path.endswith("NOTES.txt")]
    return [one for text in texts for one in yaml.safe_load_all(text) if one is not None]


def _run(command: list[str], *, stdin: str) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=SECONDS)
    if done.returncode:
        raise ChartRefusedError(done.stderr[-2000:])
    return done.stdout
