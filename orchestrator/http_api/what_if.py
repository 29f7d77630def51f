"""Simulations of a pool with another slo or other bounds over recorded arrivals, in a bounded process."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Final

from pydantic import Field

from orchestrator.base.json_fields import mappings_of
from orchestrator.config.model import MAX_WORKERS
from orchestrator.http_api.answers import FleetAnswer, Json
from queue_core.cli import exits
from queue_core.server.base.problems import refusal
from queue_core.server.extensions import CallRoute, NoQuery, RouteCall
from queue_core.server.schemas import RequestBody

MAX_SECONDS: Final = 30.0
"""How long a simulation may take."""
MAX_ARRIVALS: Final = 100_000
MAX_BODY_BYTES: Final = 8 << 20
"""Room for as many arrivals, each with the digits of a time since the epoch."""
_ONE_AT_A_TIME: Final = Lock()


class WhatIfBody(RequestBody):
    """Arrivals, and the settings to try; all others are those of the settings file."""

    arrivals: list[tuple[float, float]] = Field(
        min_length=1,
        max_length=MAX_ARRIVALS,
        description="Pairs, one a task: the second at which it arrived, and the seconds that it took.",
        strict=False,
    )
    slo_seconds: float | None = Field(None, gt=0, description="Another slo.")
    min_workers: int | None = Field(None, ge=0, le=MAX_WORKERS)
    max_workers: int | None = Field(None, ge=1, le=MAX_WORKERS)


class WhatIf(FleetAnswer):
    """How the pool would have done, and how it would have done with the settings in force."""

    tasks: int = Field(description="Tasks that arrived.")
    seconds: float = Field(description="How long they arrived for.")
    changed: Json = Field(description="With the settings to try, as `towline simulate --json` has it.")
    unchanged: Json = Field(description="With the settings in force.")


def what_if_route(settings: Path) -> CallRoute[NoQuery, WhatIfBody]:
    """Return the route; `settings` is the settings file of the pools."""
    return CallRoute(
        "POST",
        "/v1/pools/{pool}/what-if",
        "what_if",
        "How a pool would have done with another slo or other bounds, over arrivals of the past.",
        "events",
        lambda call: what_if(settings, call),
        WhatIf,
        NoQuery,
        WhatIfBody,
        MAX_BODY_BYTES,
        max_values=3 * MAX_ARRIVALS,
    )


def what_if(settings: Path, call: RouteCall[NoQuery, WhatIfBody]) -> WhatIf:
    """Simulate twice. Raises `Problem` while another simulation runs, and when one takes too long or fails."""
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        raise refusal(503, "simulation-under-way", "another simulation is under way: try again in some seconds")
    try:
        with tempfile.TemporaryDirectory(prefix="towline-what-if-") as folder:
            arrivals = Path(folder) / "arrivals.csv"
            found = sorted(call.body.arrivals)
            first = found[0][0]
            rows = [f"{at - first:.3f},{max(0.0, took):.3f}" for at, took in found]
            arrivals.write_text("arrival_s,service_s\n" + "\n".join(rows) + "\n", encoding="utf-8")
            command = ["simulate", str(arrivals), "-f", str(settings), "--pool", call.path["pool"]]
            command += ["--rules", "none", "--json"]
            unchanged = _simulated(command)
            changed = _simulated([*command, *_changes(call.body)])
    finally:
        _ONE_AT_A_TIME.release()
    (before,), (after,) = mappings_of(unchanged.get("rows")), mappings_of(changed.get("rows"))
    span = found[-1][0] - first
    return WhatIf(tasks=len(rows), seconds=max(0.0, span), changed=dict(after), unchanged=dict(before))


def _changes(body: WhatIfBody) -> list[str]:
    given = (("--slo", body.slo_seconds), ("--min", body.min_workers), ("--max", body.max_workers))
    return [text for option, value in given if value is not None for text in (option, f"{value:g}")]


def _simulated(arguments: Sequence[str]) -> Json:
    """Run the command line's simulation, at a low priority. Raises `Problem`."""
    command = ["nice", "-n", "10", sys.executable, "-m", "orchestrator", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=MAX_SECONDS, check=False, text=True)
    except subprocess.TimeoutExpired:
        said = f"the simulation took longer than {MAX_SECONDS:.0f} s: take a shorter window"
        raise refusal(422, "simulation-too-long", said) from None
    if done.returncode:
        status, kind = (404, "unknown-pool") if done.returncode == exits.NO_INPUT else (422, "simulation-failed")
        raise refusal(status, kind, _reason(done.stderr))
    found = json.loads(done.stdout)
    return dict(found) if isinstance(found, dict) else {}


def _reason(stderr: str) -> str:
    """Return the error of a command that prints it as JSON; else its last line, as of one that was killed."""
    last = (stderr.strip().splitlines() or ["it failed without a word"])[-1]
    try:
        return str(json.loads(last)["error"])
    except (ValueError, KeyError, TypeError):
        return last[:500]
