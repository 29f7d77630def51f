"""What a supervisor of Pods costs and how fast it is: `python3 -m tests.kubernetes.measure` prints the figures.

A burst of 200 and of 1,000 Pods without nodes (a thread reports that they run), an idle minute, and on a real node the
chain from a task's add to its handler's first line.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from tests.support.eventually import eventually
from tests.support.kubernetes.cluster import Json
from tests.support.kubernetes.judge import seconds_of
from tests.support.kubernetes.kubelet import a_kubelet
from tests.support.kubernetes.plane import Plane, plane
from tests.support.kubernetes.site import PodSite, pod_site
from tests.support.kubernetes.stage import ACCOUNT, patched_node, plane_stage
from tests.support.stores.engine_process import EngineUnavailableError

ELSEWHERE: Final = {"towline.test/nodes": "none"}
IDLE_SECONDS: Final = 120.0
PATIENCE_SECONDS: Final = 240.0
CHAINS: Final = 5
NO_SERVICE: Final = 69
MIB: Final = 1 << 20


def show(name: str, value: object) -> None:
    """Print one figure."""
    print(f"{name:>60}  {value}", flush=True)


def calls(made: Plane, site: PodSite) -> list[Json]:
    """Return the supervisor's calls so far."""
    return [
        one
        for one in made.audit()
        if one["objectRef"].get("namespace") == site.stage.namespace and one["user"]["username"].endswith(ACCOUNT)
    ]


def seconds_until(check: Callable[[], object]) -> float:
    """Return how long it takes until a state is there."""
    began = time.monotonic()
    eventually(check, seconds=PATIENCE_SECONDS)
    return time.monotonic() - began


def burst(made: Plane, folder: Path, count: int) -> None:
    """Measure 0 -> `count` -> 0 Pods."""
    with pod_site(plane_stage(made), folder) as site, a_kubelet(site.stage):
        pool = site.pool(
            slo="1s", churn="1s", workers={"min": 0, "max": count}, pod={"node_selector": ELSEWHERE, "memory": None}
        )
        site.write(resize=pool)
        process = psutil.Process(site.start().pid)
        idle = process.memory_info().rss
        began = time.time()
        for _ in range(0, count, 100):
            site.add(*["rest 1"] * min(count, 100))
        seconds_until(lambda: len(site.pods()) >= count)
        created = [
            seconds_of(one["requestReceivedTimestamp"])
            for one in calls(made, site)
            if one["verb"] == "create" and one["objectRef"]["resource"] == "pods"
        ]
        show(f"{count} Pods asked for, s after the burst", f"{max(created) - began:.1f}")
        seconds_until(lambda: len(site.believed()) >= count)
        before = process.cpu_times()
        seconds = seconds_until(lambda: time.time() > began + 60)
        after = process.cpu_times()
        used = after.user + after.system - before.user - before.system
        show(f"memory at {count} Pods, MiB (idle {idle // MIB})", process.memory_info().rss // MIB)
        show(f"CPU with {count} Pods that wait, % of a core", f"{100 * used / max(seconds, 1):.1f}")
        work_in_the_name_of(site, sorted(site.believed()))
        show(f"{count} Pods gone, s after the last task", f"{seconds_until(lambda: not site.pods()):.1f}")


def work_in_the_name_of(site: PodSite, workers: list[str]) -> None:
    """Lease and finish a task for each worker whose Pod runs nothing, as it would, and then what is left."""
    for worker in workers:
        site.queue.delete(site.queue.lease(worker=worker))
    site.queue.purge()


def idle(made: Plane, folder: Path) -> None:
    """Measure what a supervisor without work costs."""
    with pod_site(plane_stage(made), folder) as site:
        site.write(resize=site.pool(workers={"min": 0, "max": 10}))
        process = psutil.Process(site.start().pid)
        calls_before, before = len(calls(made, site)), process.cpu_times()
        time.sleep(IDLE_SECONDS)
        after = process.cpu_times()
        used = after.user + after.system - before.user - before.system
        show("calls a minute while idle", f"{(len(calls(made, site)) - calls_before) * 60 / IDLE_SECONDS:.1f}")
        show("CPU while idle, % of a core", f"{100 * used / IDLE_SECONDS:.2f}")


def chain(made: Plane, folder: Path) -> None:
    """Measure the way from a task's add to its handler's first line, on a node that has the image."""
    with pod_site(plane_stage(made), folder) as site:
        site.write(resize=site.pool(slo="1s", churn="1s", workers={"min": 0, "max": 1}))
        site.start()
        for number in range(CHAINS):
            began = time.time()
            site.add("rest 0")
            site.begun(number + 1)
            note = site.recorder.notes()[-1]
            made_by = [
                one for one in calls(made, site) if one["verb"] == "create" and one["objectRef"]["resource"] == "pods"
            ][-1]
            asked, answered = (seconds_of(made_by[f"{word}Timestamp"]) for word in ("requestReceived", "stage"))
            (leased,) = [one for one in site.changes() if one["event"] == "task.leased"][-1:]
            leased_at = float(str(leased["at"])) / 1e6
            steps = {"decided and asked": asked - began, "POST": answered - asked, "scheduled to leased": 0.0}
            steps["scheduled to leased"] = leased_at - answered
            steps["first line"] = note.at - leased_at
            said = ", ".join(f"{name} {1000 * seconds:.0f}" for name, seconds in steps.items())
            show(f"chain {number + 1}, ms", f"{1000 * (note.at - began):.0f} ({said})")
            eventually(site.is_done, seconds=PATIENCE_SECONDS)
            eventually(lambda: not site.pods(), seconds=PATIENCE_SECONDS)


def main() -> int:
    """Print the figures that are asked for; all without a word."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=["200", "1000", "idle", "chain", []], help="default: all")
    wanted = parser.parse_args().what or ["200", "1000", "idle", "chain"]
    try:
        with (
            plane(node_grace_seconds=50) as made,
            patched_node(made),
            tempfile.TemporaryDirectory(prefix="towline-measure-") as folder,
        ):
            for what in wanted:
                home = Path(folder) / what
                home.mkdir()
                if what == "chain":
                    made.add_node()
                    chain(made, home)
                elif what == "idle":
                    idle(made, home)
                else:
                    burst(made, home, int(what))
    except EngineUnavailableError as error:
        print(error, file=sys.stderr)
        return NO_SERVICE
    return 0


if __name__ == "__main__":
    sys.exit(main())
