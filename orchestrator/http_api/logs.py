"""Workers' output over HTTP: the last lines, and what is new behind a cursor. Every answer is bounded.

A caller that follows asks again with the last cursor: no connection stays open, and a cut one loses no line.
"""

import asyncio
import binascii
import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.errors import NoOutputError
from orchestrator.runtimes.worker_output import OutputPosition
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.output import MAX_LINES, FleetOutput, OutputBatch, WorkerLine
from queue_core.server.auth import Authorizer
from queue_core.server.endpoints import Endpoint, Parameter
from queue_core.server.extensions import ReadOnlyRoute, response_of
from queue_core.server.fast_path import Reply, reply_of
from queue_core.server.problems import invalid, refusal
from queue_core.server.schemas import response

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

    name: Annotated[str | None, Field(max_length=300)] = None
    lines: Annotated[int, Field(ge=0, le=MAX_LINES)] = 100
    since: float | None = None
    after: Annotated[str | None, Field(max_length=60_000)] = None


class ShownLine(BaseModel):
    """A line of a worker's output."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pool: str
    worker: str
    line: str
    at: float | None = Field(description="Its time, in seconds since the epoch, or that of the entry before it.")
    has_time: bool = Field(description="Whether the time is its own.")


class ShownOutput(BaseModel):
    """Lines, oldest first, and where to go on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lines: tuple[ShownLine, ...]
    skipped: dict[str, int] = Field(description="Workers of which lines were left out, with how many; -1: not known.")
    cursor: str = Field(description="Give it as `after` for what is new since.")


_PARAMETERS: Final = (
    Parameter("name", {"type": "string"}, "A pool, a worker, or the beginning of its name; left out: all workers."),
    Parameter("lines", {"type": "integer", "minimum": 0, "maximum": MAX_LINES}, "How many at most; 100."),
    Parameter("since", {"type": "number"}, "None from before this second since the epoch."),
    Parameter("after", {"type": "string"}, "The `cursor` of the previous answer: only what is new."),
)


@dataclass(frozen=True, slots=True)
class OutputRoute(ReadOnlyRoute):
    """The path of workers' output. Its answers are read from files, in a thread."""

    @property
    def endpoint(self) -> Endpoint:
        """See `ReadOnlyRoute.endpoint`."""
        answers = response(self.answers)
        return Endpoint(
            "GET", self.path, self.summary, self.permission, None, None, answers, _PARAMETERS, operation=self.name
        )

    def starlette_routes(self, authorizer: Authorizer) -> list[Route]:
        """See `ReadOnlyRoute.starlette_routes`."""

        async def view(request: Request) -> Response:
            try:
                authorizer.check(request.headers.raw, self.permission or "events")
                found = await asyncio.to_thread(self.read, dict(request.query_params))
                return response_of(Reply(200, found.model_dump_json().encode()))
            except Exception as error:  # noqa: BLE001 - the top of a request
                return response_of(reply_of(error))

        return [Route(self.path, view, methods=["GET"])]


def output_route(files: StateDir) -> ReadOnlyRoute:
    """Return the route of the output of this state directory's workers."""
    return OutputRoute(
        PATH,
        "worker_output",
        "What workers wrote to standard output and error: the last lines, or those behind a cursor.",
        "events",
        lambda parameters: shown_output(files, parameters),
        ShownOutput,
    )


def shown_output(files: StateDir, parameters: Mapping[str, str]) -> ShownOutput:
    """Return the lines that a query asks for. Raises `Problem`: 404 for an unknown name, 400 for a bad query."""
    try:
        query = OutputQuery.model_validate(parameters)
    except ValidationError as error:
        raise invalid(error) from None
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
        positions = _positions(query.after)
        most = max(_LEAST_BYTES, MAX_ANSWER_BYTES // max(1, len(workers)))
        batch = output.after(workers, positions, max_bytes=most)
        positions = {worker: positions[worker] for worker in workers}
    return ShownOutput(lines=tuple(_newest(batch)), skipped=dict(batch.skipped), cursor=_cursor(positions))


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


def _cursor(positions: Mapping[str, OutputPosition]) -> str:
    plain = {worker: (one.offset, one.checksum, one.checked_bytes) for worker, one in positions.items()}
    return urlsafe_b64encode(zlib.compress(json.dumps(plain, separators=(",", ":")).encode())).decode()


def _positions(cursor: str) -> dict[str, OutputPosition]:
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
