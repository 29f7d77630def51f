"""What the fleet's settings models have in common, and how small and how large a pool may be."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

MAX_WORKERS: Final = 10_000
DEFAULT_MAX_WORKERS: Final = 8
CONTRADICTION: Final = "contradiction"
"""The pydantic type of a mistake that settings make together; each alone is fine."""

Count = Annotated[int, Field(strict=True)]
"""A whole number; a truth value or a string is refused."""


class FleetSettingsModel(BaseModel):
    """A group of settings: frozen, and a key nobody knows is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class WorkerBounds(FleetSettingsModel):
    """How small and how large a pool may get."""

    min: Count = Field(default=0, ge=0, le=MAX_WORKERS, description="Workers kept even when nothing waits.")
    max: Count = Field(
        default=DEFAULT_MAX_WORKERS, ge=0, le=MAX_WORKERS, description="Workers never exceeded; with 0 it is shut."
    )

    @model_validator(mode="after")
    def _agrees(self) -> "WorkerBounds":
        if self.min > self.max:
            raise PydanticCustomError(CONTRADICTION, "min is above max")
        return self
