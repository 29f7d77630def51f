"""Check the outcome of a demo run, for workers of any kind."""

import json
import subprocess
from pathlib import Path
from typing import Any


def good_outcome(done: subprocess.CompletedProcess[bytes], folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return a run's figures and modules after checking that it grew, survived a kill and left nothing undone."""
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    outcome = json.loads(done.stdout.decode().splitlines()[-1])
    modules = json.loads((folder / "modules.json").read_text())
    assert outcome["added"] == outcome["done"] == 2 * len(modules) + 1
    assert (outcome["lost"], outcome["dead"], outcome["final_workers"]) == (0, 0, 0)
    assert outcome["killed"] >= 1
    assert outcome["duplicated"] <= outcome["killed"]
    assert outcome["restarted_seconds"] is not None
    assert outcome["peak_workers"] >= 2
    return outcome, modules
