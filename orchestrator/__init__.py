"""Size pools of worker processes or containers to the work that waits.

Only the names exported here are public. Run a supervisor inside a program with `read_settings` and `open_supervisor`;
compute a pool's size with `learn`, `context_of`, `decide` and `plan_actions`. Names are imported on first use.
"""

TYPE_CHECKING = False  # type checkers assume it is true; importing `typing` would slow every start

if TYPE_CHECKING:
    from orchestrator.assembly import open_supervisor
    from orchestrator.base.clock import Monotonic
    from orchestrator.base.errors import AlreadySupervisedError, OrchestratorError
    from orchestrator.base.samples import LeaseSample, QueueSample, RunningLease, Waiting
    from orchestrator.config.model import WorkerBounds
    from orchestrator.config.pools import PoolSpec, SupervisorSettings
    from orchestrator.fleet.workers import Fleet, Worker
    from orchestrator.scaling.context import DecisionContext, context_of
    from orchestrator.scaling.decision import Conditions, Decision, Inputs, Limit
    from orchestrator.scaling.learning import PolicyState, learn
    from orchestrator.scaling.plan import Plan, Spawn, WorkerRemoval, plan_actions
    from orchestrator.scaling.policy import decide
    from orchestrator.settings_file import Project, read_settings
    from orchestrator.supervisor.supervisor import Supervisor
    from queue_core.config.yaml_document import DocumentError
else:
    _HOMES = {
        "orchestrator.assembly": "open_supervisor",
        "orchestrator.base.clock": "Monotonic",
        "orchestrator.config.pools": "PoolSpec SupervisorSettings",
        "orchestrator.scaling.decision": "Conditions Decision Inputs Limit",
        "orchestrator.base.errors": "AlreadySupervisedError OrchestratorError",
        "orchestrator.fleet.workers": "Fleet Worker",
        "orchestrator.scaling.learning": "PolicyState learn",
        "orchestrator.base.samples": "LeaseSample QueueSample RunningLease Waiting",
        "orchestrator.config.model": "WorkerBounds",
        "orchestrator.scaling.plan": "WorkerRemoval Plan Spawn plan_actions",
        "orchestrator.scaling.policy": "decide",
        "orchestrator.settings_file": "Project read_settings",
        "orchestrator.scaling.context": "DecisionContext context_of",
        "orchestrator.supervisor.supervisor": "Supervisor",
        "queue_core.config.yaml_document": "DocumentError",
    }
    """The public names by the module that defines them."""

    def __getattr__(name):
        for module, names in _HOMES.items():
            if name in names.split():
                from importlib import import_module

                found = globals()[name] = getattr(import_module(module), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)

    def __dir__():
        return sorted({*globals(), *__all__})


__all__ = [
    "AlreadySupervisedError",
    "Conditions",
    "Decision",
    "DecisionContext",
    "DocumentError",
    "Fleet",
    "Inputs",
    "LeaseSample",
    "Limit",
    "Monotonic",
    "OrchestratorError",
    "Plan",
    "PolicyState",
    "PoolSpec",
    "Project",
    "QueueSample",
    "RunningLease",
    "Spawn",
    "Supervisor",
    "SupervisorSettings",
    "Waiting",
    "Worker",
    "WorkerBounds",
    "WorkerRemoval",
    "context_of",
    "decide",
    "learn",
    "open_supervisor",
    "plan_actions",
    "read_settings",
]
