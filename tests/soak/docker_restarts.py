"""`python3 -m tests.soak docker-restarts`: kill a supervisor of containers under load, over and over."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.support.docker.engine import EngineUnavailableError, docker_engine
from tests.support.docker.load import ContainerLoad
from tests.support.docker.site import DockerSite, docker_site
from tests.support.eventually import eventually

WORKERS: Final = 2
TASKS_A_LIFE: Final = 5
"""The least number of tasks finished between two kills."""
SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Restarted:
    """The result of the kills: `lost` tasks were never finished, `left` containers have no supervisor."""

    kills: int
    added: int
    lost: int
    run_twice: int
    deaths: int
    replaced: int
    left: int

    @property
    def is_well(self) -> bool:
        """Whether no task or worker was affected."""
        return not (self.lost or self.run_twice or self.deaths or self.replaced or self.left)


def restarted(site: DockerSite, *, kills: int) -> Restarted:
    """Kill the supervisor `kills` times, each time once its workers have gone on; then stop the last gracefully."""
    site.write(resize=site.pool(workers={"min": WORKERS, "max": WORKERS}))
    first: dict[str, str] = {}
    with ContainerLoad(site) as load:
        for _ in range(kills):
            supervisor = site.start()
            eventually(lambda: len(site.living()) >= WORKERS, seconds=SECONDS)
            first = first or site.living()
            seen = len(site.notes("end"))
            eventually(lambda seen=seen: len(site.notes("end")) >= seen + TASKS_A_LIFE, seconds=SECONDS)  # type: ignore[misc]
            supervisor.kill()
            supervisor.wait()
    site.start()
    load.settle()
    replaced = len(set(first.items()) - set(site.living().items()))
    deaths = len(site.deaths())
    site.stop()
    ended = {note.task for note in site.notes("end")}
    return Restarted(
        kills, len(load.names), len(set(load.names) - ended), len(load.run_twice()), deaths, replaced,
        len(site.engine.containers()),
    )  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Run it and print the figures; return 0 when no task or worker was affected."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.soak docker-restarts", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args(arguments)
    try:
        with docker_engine() as engine, docker_site(engine) as site:
            seen = restarted(site, kills=options.kills)
    except EngineUnavailableError as error:
        print(f"docker-restarts: {error}", file=sys.stderr)
        return 69
    print(f"supervisor killed {seen.kills} times and started again, {WORKERS} containers under load")
    print(f"{seen.added} tasks added, {seen.lost} lost, {seen.run_twice} run twice")
    print(f"containers: {seen.replaced} replaced, {seen.deaths} died, {seen.left} left over after a stop")
    return 0 if seen.is_well else 1
