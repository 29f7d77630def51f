"""Workers' output over HTTP: the last lines, and what is new behind a cursor. Every answer is bounded.

A caller that follows asks again with the last cursor: no connection stays open, and a cut one loses no line.
"""

import binascii
import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from orchestrator.base.errors import NoOutputError
from orchestrator.runtimes.worker_output import OutputPosition
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.output import MAX_LINES, FleetOutput, OutputBatch, WorkerLine
from queue_core.server.base.problems import refusal
from queue_core.server.extensions import ExtensionRoute, reads

PATH: Final = "/v1/logs"
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Text of one answer, at most; of more, the newest lines."""
MAX_FOLLOWED: Final = 1_000
"""Workers of one answer, at most: the cursor has a place for each."""
_LEAST_BYTES: Final = 4 * 1024

_Positions: TypeAlias = dict[str, tuple[int, int, int]]
_Number: TypeAlias = Annotated[int, Field(ge=0)]
_CURSOR: Final[TypeAdapter[_Positions]] = TypeAdapter(dict[str, tuple[_Number, _Number, _Number]])


class OutputQuery(BaseModel):
    """The query of a request."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[
        str | None,
        Field(max_length=300, description="A pool, a worker, or the beginning of its name; left out: all workers."),
    ] = None
    lines: Annotated[int, Field(ge=0, le=MAX_LINES, description="How many at most; 100.")] = 100
    since: Annotated[float | None, Field(description="None from before this second since the epoch.")] = None
    after: Annotated[
        str | None,
        Field(max_length=60_000, description="The `cursor` of the previous answer: only what is new."),
    ] = None


class ShownLine(BaseModel):
    """A line of a worker's output."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pool: str
    worker: str
    line: str
    at: float | None = Field(description="Its time, in seconds since the epoch, or that of the entry before it.")
    has_time: bool = Field(description="Whether the time is its own.")


class ShownOutput(BaseModel):
    """Lines, oldest first, and where to continue."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lines: tuple[ShownLine, ...]
    skipped: dict[str, int] = Field(description="Workers of which lines were left out, with how many; -1: not known.")
    cursor: str = Field(description="Give it as `after` for what is new since.")


def output_route(files: StateDir) -> ExtensionRoute:
    """Return the route of the output of this state directory's workers."""
    return reads(
        PATH,
        "worker_output",
        "Return lines that workers wrote to standard output and error: the last ones, or those behind a cursor.",
        "events",
        lambda call: shown_output(files, call.query),
        ShownOutput,
        OutputQuery,
    )


def shown_output(files: StateDir, query: OutputQuery) -> ShownOutput:
    """Return the lines that a query asks for. Raises `Problem`: 404 for an unknown name, 400 for a bad cursor."""
    output = FleetOutput(files)
    try:
        workers = output.chosen(query.name)
    except NoOutputError as error:
        if query.name is not None:
            raise refusal(404, "unknown-worker", f"{error}; {error.fix}") from None
        workers = {}
    if len(workers) > MAX_FOLLOWED:
        detail = f"{len(workers)} workers have output, more than {MAX_FOLLOWED}: give name=POOL or name=WORKER"
        raise refusal(400, "too-many-workers", detail)
    if query.after is None:
        batch, positions = output.last(workers, lines=query.lines, since=query.since)
    else:
        positions = positions_in(query.after)
        most = max(_LEAST_BYTES, MAX_ANSWER_BYTES // max(1, len(workers)))
        batch = output.after(workers, positions, max_bytes=most)
        positions = {worker: positions[worker] for worker in workers}
    return ShownOutput(lines=tuple(_newest(batch)), skipped=dict(batch.skipped), cursor=cursor_of(positions))


def _newest(batch: OutputBatch) -> Sequence[ShownLine]:
    """Return the newest lines that an answer has room for."""
    room = MAX_ANSWER_BYTES
    kept: list[WorkerLine] = []
    for line in reversed(batch.lines):
        room -= len(line.text)
        if room < 0:
            break
        kept.append(line)
    return [
        ShownLine(pool=one.pool, worker=one.worker, line=one.text, at=one.at, has_time=one.has_time)
        for one in reversed(kept)
    ]


def cursor_of(positions: Mapping[str, OutputPosition]) -> str:
    """Return the positions as a text that a caller gives back."""
    plain = {worker: (one.offset, one.checksum, one.checked_bytes) for worker, one in positions.items()}
    return urlsafe_b64encode(zlib.compress(json.dumps(plain, separators=(",", ":")).encode())).decode()


def positions_in(cursor: str) -> dict[str, OutputPosition]:
    """Return the positions of a cursor. Raises `Problem` for a text that is none."""
    try:
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(urlsafe_b64decode(cursor), MAX_ANSWER_BYTES)
        found = _CURSOR.validate_json(plain)
    except (ValueError, binascii.Error, zlib.error):
        raise refusal(400, "invalid-cursor", "after: not a cursor of an answer of this path; leave it out") from None
    return {
        worker: OutputPosition(offset, checksum, min(checked, offset))
        for worker, (offset, checksum, checked) in found.items()
    }
