"""Operators' orders about workers over HTTP: drain one, kill one, replace all of a pool.

An order is written into the supervisor's state directory and heeded within a second, as those of `operator_calls`.
"""

from typing import Final

from pydantic import Field

from orchestrator.base.json_fields import count_in, mappings_of, text_in
from orchestrator.config.worker_requests import WorkerVerb, pool_sentence, worker_sentence
from orchestrator.fleet.workers import EXTERNAL
from orchestrator.http_api.answers import FleetAnswer
from orchestrator.http_api.fleet_now import FleetNow
from orchestrator.http_api.operator_calls import OperatorCalls, named
from orchestrator.http_api.workers import worker_named
from orchestrator.state.directory import StateDir
from queue_core.process.terminal import clean
from queue_core.server.base.problems import refusal
from queue_core.server.extensions import CallRoute, ExtensionRoute, NoQuery, RouteCall
from queue_core.server.schemas import EmptyBody

MAX_NAMED_TASKS: Final = 20
"""Tasks that an answer names; `holds` counts all."""


class WorkerEnding(FleetAnswer):
    """An order about a worker."""

    worker: str
    pool: str
    order: str = Field(description="`drain` or `kill`.")
    alive: bool = Field(description="Whether its supervisor lives; otherwise the next one carries it out.")
    holds: int = Field(description="How many tasks it held at the order.")
    tasks: list[str] = Field(description="Their names or ids, the first 20.")
    sentence: str = Field(description="The fate of the worker and its tasks.")


class PoolReplaced(FleetAnswer):
    """An order to replace all workers of a pool."""

    pool: str
    alive: bool = Field(description="Whether its supervisor lives; otherwise the next one carries it out.")
    workers: int = Field(description="How many are replaced.")
    sentence: str = Field(description="The same in words.")


class WorkerRequestCalls:
    """Takes orders about workers for the supervisor of one state directory."""

    def __init__(self, files: StateDir, fleet: FleetNow, operator: OperatorCalls) -> None:
        """`operator`: knows the supervisor's pools, and tells its log."""
        self._files = files
        self._fleet = fleet
        self._operator = operator

    def routes(self) -> tuple[ExtensionRoute, ...]:
        """Return the routes: to kill is for administrators."""
        drain: CallRoute[NoQuery, EmptyBody] = CallRoute(
            "POST",
            "/v1/workers/{worker}/drain",
            "drain_worker",
            "Let a worker finish what it holds, and end.",
            "operate",
            lambda call: self.order(call, "drain"),
            WorkerEnding,
            NoQuery,
            EmptyBody,
        )
        kill: CallRoute[NoQuery, EmptyBody] = CallRoute(
            "POST",
            "/v1/workers/{worker}/kill",
            "kill_worker",
            "End a worker now; its tasks run again at once.",
            "kill",
            lambda call: self.order(call, "kill"),
            WorkerEnding,
            NoQuery,
            EmptyBody,
        )
        replace: CallRoute[NoQuery, EmptyBody] = CallRoute(
            "POST",
            "/v1/pools/{pool}/replace",
            "replace_workers",
            "Replace all workers of a pool, new before old.",
            "operate",
            self.replace,
            PoolReplaced,
            NoQuery,
            EmptyBody,
        )
        return drain, kill, replace

    def order(self, call: RouteCall[NoQuery, EmptyBody], verb: WorkerVerb) -> WorkerEnding:
        """Have a worker drained or killed. Raises `Problem` for one that is not there or not ours."""
        name = call.path["worker"]
        self._operator.check_takes_calls()
        worker = worker_named(self._files, self._fleet, name)
        if text_in(worker, "ref").startswith(EXTERNAL):
            shown = clean(name)
            raise refusal(
                422, "not-ours", f"worker {shown} was started by another system, which ends it: {verb} it there"
            )
        by, now = named(call.caller, call.address), self._operator.now()
        self._operator.write(
            lambda: self._files.change_worker_requests(lambda before: before.with_worker(name, verb, by=by, now=now))
        )
        sentence = worker_sentence(count_in(worker, "holding"), verb)
        self._operator.record(call, verb, sentence, pool=text_in(worker, "pool"), worker=name)
        tasks = [text_in(one, "task") for one in mappings_of(worker.get("tasks"))]
        return WorkerEnding(
            worker=name,
            pool=text_in(worker, "pool"),
            order=verb,
            alive=self._files.is_supervised(),
            holds=count_in(worker, "holding"),
            tasks=tasks[:MAX_NAMED_TASKS],
            sentence=sentence,
        )

    def replace(self, call: RouteCall[NoQuery, EmptyBody]) -> PoolReplaced:
        """Have all workers of a pool replaced. Raises `Problem` for a pool that is not there or not ours."""
        pool = self._operator.pool_of(call)
        if pool.runtime_kind == "external":
            raise refusal(
                422, "not-ours", f"the workers of pool {pool.name} are started by another system: replace them there"
            )
        by, now = named(call.caller, call.address), self._operator.now()
        self._operator.write(
            lambda: self._files.change_worker_requests(lambda before: before.with_replaced(pool.name, by=by, now=now))
        )
        known = mappings_of((self._files.shared_snapshot() or {}).get("workers"))
        count = sum(1 for one in known if one.get("pool") == pool.name)
        sentence = pool_sentence(count)
        self._operator.record(call, "replace", sentence, pool=pool.name)
        return PoolReplaced(pool=pool.name, alive=self._files.is_supervised(), workers=count, sentence=sentence)
