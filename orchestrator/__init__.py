"""Sizes pools of worker processes or containers to the work that waits.

What is exported here is public, all else is private: to run a supervisor inside a program (`read_settings`,
`open_supervisor`), and to ask the policy for a pool's size (`learn`, `context_of`,
`decide`, `plan_actions`). A name is imported when it is
first asked for.
"""

TYPE_CHECKING = False  # type checkers take it for true; importing `typing` for it would be an import

if TYPE_CHECKING:
    from orchestrator.assembly import open_supervisor
    from orchestrator.clock import Monotonic
    from orchestrator.config import PoolSpec, SupervisorSettings
    from orchestrator.decision import Conditions, Decision, Inputs, Limit
    from orchestrator.errors import AlreadySupervisedError, OrchestratorError
    from orchestrator.fleet import Fleet, Worker
    from orchestrator.learning import PolicyState, learn
    from orchestrator.metrics import LeaseSample, QueueSample, RunningLease, Waiting
    from orchestrator.model import WorkerBounds
    from orchestrator.plan import Plan, Spawn, WorkerRemoval, plan_actions
    from orchestrator.policy import decide
    from orchestrator.project import Project, read_settings
    from orchestrator.scene import DecisionContext, context_of
    from orchestrator.supervisor import Supervisor
    from queue_core.yaml_text import DocumentError
else:
    _HOMES = {
        "orchestrator.assembly": "open_supervisor",
        "orchestrator.clock": "Monotonic",
        "orchestrator.config": "PoolSpec SupervisorSettings",
        "orchestrator.decision": "Conditions Decision Inputs Limit",
        "orchestrator.errors": "AlreadySupervisedError OrchestratorError",
        "orchestrator.fleet": "Fleet Worker",
        "orchestrator.learning": "PolicyState learn",
        "orchestrator.metrics": "LeaseSample QueueSample RunningLease Waiting",
        "orchestrator.model": "WorkerBounds",
        "orchestrator.plan": "WorkerRemoval Plan Spawn plan_actions",
        "orchestrator.policy": "decide",
        "orchestrator.project": "Project read_settings",
        "orchestrator.scene": "DecisionContext context_of",
        "orchestrator.supervisor": "Supervisor",
        "queue_core.yaml_text": "DocumentError",
    }
    """The public names, by the module that has them."""

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
