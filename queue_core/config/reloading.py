"""Settings of a queue server that a reload puts in force, and those that wait for the next start. Pure."""

from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from queue_core.config.settings import QueueFile
from queue_core.config.yaml_document import shown_path


def with_credentials_of(in_force: QueueFile, read: QueueFile) -> QueueFile:
    """Return the settings in force after a listener has taken up tokens and certificates.

    One without tokens gets none, as those that call it have none; a listener keeps its protocol, with or without TLS.
    """
    before, after = in_force.server, read.server
    taken: dict[str, object] = {}
    if bool(before.tokens) == bool(after.tokens):
        taken["tokens"] = after.tokens
    if (before.tls is None) == (after.tls is None):
        taken["tls"] = after.tls
    if before.grpc is not None and after.grpc is not None:
        old, new = before.grpc, after.grpc
        if (old.certificate is None) == (new.certificate is None):
            taken["grpc"] = old.model_copy(update={"certificate": new.certificate, "key": new.key})
    return in_force.model_copy(update={"server": before.model_copy(update=taken)})


def changed_settings(before: QueueFile, after: QueueFile) -> tuple[str, ...]:
    """Return the names of changed settings; not their values, which may be secret. Schedules are a supervisor's."""
    old, new = (
        {shown_path(path): value for path, value in _leaves((), settings) if path[0] != "schedules"}
        for settings in (before, after)
    )
    return tuple(path for path in dict.fromkeys([*old, *new]) if old.get(path) != new.get(path))


def _leaves(prefix: tuple[str | int, ...], value: object) -> Iterator[tuple[tuple[str | int, ...], object]]:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True)
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves((*prefix, key), inner)
        return
    yield prefix, value
