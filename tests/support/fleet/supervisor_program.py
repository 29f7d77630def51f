"""A supervisor process for end-to-end stories: `python -m tests.support.fleet.supervisor_program SETTINGS.json`.

A reload reads the settings again: `{"store": URL, "state_dir": PATH, "orphan_grace": "60s", "lead": "15s",
"pools": {...}}`.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from orchestrator.base.errors import ConfigError, ReloadRefusedError
from orchestrator.config.pools import PoolSpec, SupervisorSettings, parse_pools
from orchestrator.runtimes.process import ProcessRuntime
from orchestrator.sources.pull_queue import QueueSource
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.supervisor import Supervisor
from queue_core.client.connect import open_queues
from queue_core.process import logs


def load(path: Path) -> Mapping[str, PoolSpec]:
    """Return the pools of the settings file."""
    try:
        return parse_pools(json.loads(path.read_text())["pools"])
    except (ConfigError, ValueError) as error:
        raise ReloadRefusedError([str(error)]) from error


def main(path: Path) -> int:
    """Supervise until a signal."""
    logs.configure(shape="json")
    data = json.loads(path.read_text())
    files = StateDir(Path(data["state_dir"]))
    queues = open_queues(data["store"])
    runtime = ProcessRuntime(files.path, lock=files.lock_path)
    try:
        return Supervisor(
            SupervisorSettings(
                orphan_grace=data.get("orphan_grace", "60s"),
                lead=data.get("lead", "15s"),
                state_dir=data["state_dir"],
            ),
            load(path),
            source=QueueSource(queues),
            runtime=runtime,
            files=files,
            url=data["store"],
            load=lambda: load(path),
            watched=path,
        ).run()
    finally:
        runtime.close()
        queues.close()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
