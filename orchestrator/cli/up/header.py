"""The header of `towline up` on a terminal: the store, the address, and a table of its pools. Pure."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from orchestrator.config.pools import PoolSpec
from queue_core.cli.tables import columns, lay_out
from queue_core.cli.wrapping import wrapped
from queue_core.config.celery_names import shown_queue
from queue_core.process.terminal import clean
from queue_core.process.wording import counted, shown_setting

MAX_POOLS: Final = 20
"""Pools that the table lists."""
_INDENT: Final = 2


def header(
    pools: Mapping[str, PoolSpec],
    *,
    title: tuple[str, ...],
    output: str,
    width: int | None,
    handlers: Mapping[str, int] | None = None,
    console: str = "",
) -> list[str]:
    """Return the lines of the header.

    Args:
        title: what stands behind the version: the settings file, the store, the address.
        output: where workers' output appears, as a sentence's beginning.
        console: where the console is, as a sentence.
        handlers: the number of handlers by pool, where the programs were imported; None: that is not shown.
    """
    lines = wrapped("   ".join(("Towline " + _version(), *map(clean, title))), width=width, hang=_INDENT)
    titles = ["pool", "queue", "tags", *(["handlers"] if handlers is not None else []), "workers", "slo"]
    least = ("handlers", "tags", "queue") if handlers is not None else ("tags", "queue")
    rows = [_row(name, spec, handlers) for name, spec in list(pools.items())[:MAX_POOLS]]
    if rows:
        room = None if width is None else max(1, width - _INDENT)
        table = lay_out(columns(*titles, least=least, keeps=("workers",)), rows, width=room)
        lines += [f"{' ' * _INDENT}{line}".rstrip() for line in table.lines]
    else:
        lines.append("  no pools: tasks wait until another program leases them")
    if len(pools) > MAX_POOLS:
        lines.append(f"  and {counted(len(pools) - MAX_POOLS, 'more pool')}: `towline pools` lists all")
    if console:
        lines += wrapped(clean(console), width=width, hang=_INDENT)
    lines += wrapped(f"{clean(output)}; Ctrl-C lets them finish.", width=width, hang=_INDENT)
    return [*lines, ""]


def _row(name: str, spec: PoolSpec, handlers: Mapping[str, int] | None) -> list[object]:
    tags = "untagged" if spec.untagged else ", ".join(spec.tags or ()) or "any"
    found = [] if handlers is None else [handlers.get(name)]
    workers = f"{spec.workers.min} to {spec.workers.max}"
    queues = shown_queue(spec.queue) if spec.celery is None else clean(", ".join(spec.celery.queues))
    return [name, queues, tags, *found, workers, shown_setting(spec.slo)]


def _version() -> str:
    try:
        return version("towline")
    except PackageNotFoundError:  # a source tree that is not installed
        return "(not installed)"
