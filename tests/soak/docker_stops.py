"""`python3 -m tests.soak docker-stop`: six tasks of 20 s in a container, and `docker stop` with its 10 s."""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from tests.support.docker.engine import EngineUnavailableError, docker_engine
from tests.support.docker.site import docker_site
from tests.support.docker.stop import TASKS, stopped
from tests.support.eventually import eventually

AGAIN_SECONDS: Final = 2.0


def main(arguments: Sequence[str]) -> int:
    """Run it and print the figures; return 0 when all tasks run again within 2 s, and no lease was counted."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.soak docker-stop", description=__doc__)
    parser.add_argument("--task-seconds", type=float, default=20.0)
    parser.add_argument("--timeout", type=int, default=10, help="how long Docker waits, in seconds")
    parser.add_argument("--grace", nargs="*", default=["30s", "8s"], help="the pool's, one after another")
    options = parser.parse_args(arguments)
    is_well = True
    try:
        with docker_engine() as engine:
            for grace in options.grace:
                with docker_site(engine) as site:
                    payload = f"rest {options.task_seconds}"
                    seen = stopped(site, timeout=options.timeout, payload=payload, grace=grace)
                    eventually(site.is_done, seconds=options.task_seconds + 30)
                    cause = eventually(lambda site=site, seen=seen: site.deaths().get(seen.worker))["cause"]  # type: ignore[misc]
                    site.stop()
                counted = max(seen.lease_numbers) - 1
                print(
                    f"grace {grace}: `docker stop -t {options.timeout}` took {seen.end_seconds:.1f} s ({cause}),",
                    end=" ",
                )
                again = max(0.0, seen.again_seconds)
                print(f"({cause}), all {TASKS} ran elsewhere {again:.2f} s later, {counted} leases counted, 0 lost")
                is_well = is_well and seen.again_seconds < AGAIN_SECONDS and not counted
    except EngineUnavailableError as error:
        print(f"docker-stop: {error}", file=sys.stderr)
        return 69
    return 0 if is_well else 1
