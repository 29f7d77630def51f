"""The tests, and commands that test at length: `python3 -m tests.faults`, `python3 -m tests.bench.peers`.

`python3 -m tests.bench.alone.revisions` compares two commits, `python3 -m tests.bench.alone.changes` measures what
operators do to many tasks, `python3 -m tests.bench.alone.limits` queues with and without limits. `python3 -m
tests.celery --all` measures what Celery gets by changing its URL.
"""

import sys

if sys.argv[0] == "-m":  # so it is while Python looks for the module that it is to run
    from pathlib import Path

    from tests.support.environment import in_environment

    in_environment(sys.orig_argv, prefix=Path(sys.prefix))
