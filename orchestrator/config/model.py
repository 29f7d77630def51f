"""The base of the fleet's settings models, and the bounds of a pool."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

MAX_WORKERS: Final = 10_000
DEFAULT_MAX_WORKERS: Final = 8
CONTRADICTION: Final = "contradiction"
"""The pydantic error type of settings that are valid one by one, but not together."""

Count = Annotated[int, Field(strict=True)]
"""A whole number; a boolean or a string is refused."""


class FleetSettingsModel(BaseModel):
    """A group of settings: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class WorkerBounds(FleetSettingsModel):
    """The smallest and the largest size of a pool."""

    min: Count = Field(default=0, ge=0, le=MAX_WORKERS, description="Workers kept even when nothing waits.")
    max: Count = Field(
        default=DEFAULT_MAX_WORKERS, ge=0, le=MAX_WORKERS, description="Workers never exceeded; 0 shuts the pool."
    )

    @model_validator(mode="after")
    def _agrees(self) -> "WorkerBounds":
        if self.min > self.max:
            raise PydanticCustomError(CONTRADICTION, "min is above max")
        return self
