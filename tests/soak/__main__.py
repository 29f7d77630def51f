"""`python3 -m tests.soak NAME`: one long run; prints its figures and exits with 0 when all are as they must be.

A run is a function from its own arguments to an exit code. Add yours to `RUNS`; import what it needs inside it, as not
every host has what every run needs.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

Run = Callable[[Sequence[str]], int]

USAGE: Final = 2


def _starts(arguments: Sequence[str]) -> int:
    from tests.soak.starts import main as starts

    return starts(arguments)


def _rolling(arguments: Sequence[str]) -> int:
    from tests.soak.rolling import main as rolling

    return rolling(arguments)


def _renewals(arguments: Sequence[str]) -> int:
    from tests.soak.renewing import main as renewals

    return renewals(arguments)


def _poison(arguments: Sequence[str]) -> int:
    from tests.soak.poison import main as poison

    return poison(arguments)


def _swarm(arguments: Sequence[str]) -> int:
    from tests.soak.swarm import main as swarm

    return swarm(arguments)


def _docker_restarts(arguments: Sequence[str]) -> int:
    from tests.soak.docker_restarts import main as docker_restarts

    return docker_restarts(arguments)


def _docker_stop(arguments: Sequence[str]) -> int:
    from tests.soak.docker_stops import main as docker_stop

    return docker_stop(arguments)


def _external(arguments: Sequence[str]) -> int:
    from tests.soak.external import main as external

    return external(arguments)


RUNS: Final[Mapping[str, tuple[str, Run]]] = {
    "starts": ("thousands of worker starts and stops: memory, descriptors, threads and zombies stay flat", _starts),
    "external": ("a stand-in for KEDA starts and ends workers by the supervisor's numbers", _external),
    "rolling": ("ten workers under load are replaced: no gap in capacity, nothing lost or run twice", _rolling),
    "poison": ("tasks that end their process among thousands: only these are dead, the rest is hardly slower", _poison),
    "swarm": ("a pool on two engines grows and shrinks while nodes are drained and lost, over and over", _swarm),
    "docker-restarts": (
        "a supervisor of containers is killed 20 times: the same containers, nothing lost",
        _docker_restarts,
    ),
    "docker-stop": ("six tasks of 20 s in a container that is stopped: run again elsewhere in 2 s", _docker_stop),
    "renewals": ("`towline up` started anew in its own place under load, over and over", _renewals),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the one that is named, with the arguments that follow its name."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if not given or given[0] not in RUNS:
        print(_usage(given[0] if given else ""), file=sys.stderr)
        return USAGE if given and given[0] not in {"-h", "--help"} else 0
    return RUNS[given[0]][1](given[1:])


def _usage(name: str) -> str:
    lines = [f"there is no run '{name}'"] if name and name not in {"-h", "--help"} else []
    lines.append("usage: python3 -m tests.soak NAME [--help | options]")
    lines += [f"  {known:16} {title}" for known, (title, _run) in RUNS.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
