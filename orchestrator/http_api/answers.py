"""What the supervisor's API answers with, as models: their JSON, and its schema."""

from pydantic import BaseModel, ConfigDict, Field


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PoolStats(_Answer):
    """One pool in flat numbers, as KEDA's metrics-api scaler and scripts read them."""

    pool: str
    queue: str
    runtime: str
    ready: int = Field(description="Tasks leasable now.")
    delayed: int = Field(description="Tasks whose eta is ahead.")
    leased: int = Field(description="Tasks under a lease.")
    dead: int = Field(description="Tasks kept aside after their last lease.")
    suspects: int = Field(description="Tasks that were there at several deaths and wait for workers of their own.")
    oldest_age_seconds: float = Field(description="How long the oldest ready task had waited when last looked at.")
    p99_over_slo: float = Field(description="99th percentile of the waits of the last hour's leases, over the slo.")
    worst_over_slo: float = Field(description="The longest of those waits, over the slo.")
    desired_workers: int = Field(description="How many workers the pool should have now.")
    unguarded_workers: int = Field(description="How many it would want if no guard had spoken.")
    alive_workers: int = Field(description="Workers it has that are not asked to leave.")
    starting_workers: int
    idle_workers: int
    busy_workers: int
    draining_workers: int
    killed_workers: int
    min_workers: int = Field(description="The lower bound in force.")
    max_workers: int = Field(description="The upper bound in force.")
    slo_seconds: float = Field(description="The longest a task may wait.")
    paused: int = Field(ge=0, le=1, description="1 while the queue grants no lease.")
    sample_age_seconds: float = Field(description="Since the queue was last looked at.")
    decision_age_seconds: float = Field(description="Since the last decision.")
    rule: str = Field(description="What set the number of workers.")
    why: str = Field(description="The same in words.")
    guards: str = Field(description="The guards that hold the decision back, joined by commas.")
    concerns: str = Field(description="What is wrong with it (late, at_max, no_starts), joined by commas.")
    concerns_why: str = Field(description="The causes of that in words.")


class Pools(_Answer):
    """All pools that have been decided on."""

    phase: str
    pools: tuple[PoolStats, ...]


class SupervisorHealth(_Answer):
    """How the supervisor is."""

    status: str
    phase: str
    pools: int
    turn_age_seconds: float = Field(description="Since it last finished everything that was due.")
