"""A process that transfers queues and may be killed at a chosen write.

Run it as `python -m tests.support.stores.transfer_process` with:

    migrate FROM TO AT      kills itself right after its AT-th write to TO; 0: never
    import FILE TO AT
    export FROM FILE

At the end it prints its peak memory in bytes.
"""

import sys
from pathlib import Path

from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.transfer.exporter import export
from queue_core.transfer.importer import import_file
from tests.support.stores.transfers import imported, killed, moved, quiet


def main(verb: str, source: str, target: str, at: int = 0) -> None:
    """Run the transfer."""
    if verb == "export":
        export(open_store(source), Path(target), progress=quiet)
    elif verb == "import":
        new = _mortal(open_store(target), at)
        if at:
            imported(new, Path(source))
        else:
            import_file(new, Path(source), checking=quiet, importing=quiet)
    else:
        moved(open_store(source), _mortal(open_store(target), at))
    sys.stdout.write(f"{most_memory_bytes()}\n")


def most_memory_bytes() -> int:
    """Return this program's peak memory; `getrusage` would include the process it was forked from."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _mortal(store: Store, at: int) -> Store:
    return killed(store, at=at, when="after") if at else store


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 0)
