"""Record everything that a decision was made from as plain values, and make the decision again from them. Pure.

The recorded state has already learned from the sample, so the sample's finished leases are left out.
"""

import dataclasses
import math
import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import cache
from typing import Final, NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import QueueSample
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import Fleet
from orchestrator.scaling.context import context_of
from orchestrator.scaling.decision import Conditions, Decision
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.policy import decide

Value = TypeVar("Value")
Reader = Callable[[object], object]

_ENDLESS: Final = {"inf": math.inf, "-inf": -math.inf}


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedDecision:
    """The inputs of a decision; `state` is the one after it."""

    sample: QueueSample
    fleet: Fleet
    state: PolicyState
    now: Monotonic
    conditions: Conditions


def recorded(
    sample: QueueSample, fleet: Fleet, *, spec: PoolSpec, state: PolicyState, now: Monotonic, conditions: Conditions
) -> dict[str, object]:
    """Return plain values from which `replayed` makes the same decision. `state` is the one after the decision."""
    without_leases = replace(state, contention=replace(state.contention, seen={}))
    inputs = RecordedDecision(replace(sample, finished=()), fleet, without_leases, now, conditions)
    plain = {field.name: _plain(getattr(inputs, field.name)) for field in dataclasses.fields(RecordedDecision)}
    return {"spec": spec.model_dump(mode="python", by_alias=True, exclude_defaults=True), **plain} | {
        "workers": [spec.workers.min, spec.workers.max]
    }


def replayed(record: object) -> Decision:
    """Make the decision again from what `recorded` returned. Raises `ValueError` for anything else."""
    match record:
        case {"spec": dict() as settings, "workers": [int() as low, int() as high], **rest}:
            pass
        case _:
            raise ValueError("not the record of a decision's inputs")
    # The bounds of the moment may be outside what a settings file may contain.
    spec = PoolSpec.model_validate({name: value for name, value in settings.items() if name != "workers"})
    inputs = _value(RecordedDecision, rest)
    return decide(
        context_of(
            inputs.sample,
            fleet=inputs.fleet,
            spec=spec.bounded(low, high),
            state=inputs.state,
            now=inputs.now,
            conditions=inputs.conditions,
        )
    )


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def _value(kind: type[Value], plain: object) -> Value:
    try:
        found = _reader(cast("Hashable", kind))(plain)
    except (TypeError, KeyError) as error:
        raise ValueError(f"not a {kind.__name__}: {error}") from None
    if not isinstance(found, kind):
        raise ValueError(f"not a {kind.__name__}")  # noqa: TRY004  callers handle one class of error
    return found


@cache
def _reader(kind: Hashable) -> Reader:
    """Return a function that reads the plain form of a type."""
    if isinstance(kind, NewType):
        return _reader(kind.__supertype__)
    if kind is float:
        return _float
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (inner,) = [_reader(one) for one in arguments if one is not type(None)]
        return lambda plain: None if plain is None else inner(plain)
    if origin is tuple and arguments[-1] is Ellipsis:
        each = _reader(arguments[0])
        return lambda plain: tuple(each(one) for one in _list(plain))
    if origin is tuple:
        readers = [_reader(one) for one in arguments]
        return lambda plain: tuple(read(one) for read, one in zip(readers, _list(plain), strict=True))
    if origin in (dict, Mapping):
        is_counted, value = arguments[0] is int, _reader(arguments[1])
        return lambda plain: {int(name) if is_counted else name: value(one) for name, one in _mapping(plain).items()}
    return lambda plain: plain


def _dataclass_reader(kind: type) -> Reader:
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]

    def read(plain: object) -> object:
        values = _mapping(plain)
        # A record of before there was a field has its default.
        return kind(**{name: _reader(hints[name])(values[name]) for name in names if name in values})

    return read


def _float(plain: object) -> float:
    if isinstance(plain, str):
        return _ENDLESS[plain]
    if not isinstance(plain, int | float):
        raise TypeError(f"not a number: {plain!r}")
    return float(plain)


def _list(plain: object) -> list[object]:
    if not isinstance(plain, list):
        raise TypeError(f"not a list: {plain!r}")
    return plain


def _mapping(plain: object) -> dict[str, object]:
    if not isinstance(plain, dict):
        raise TypeError(f"not a mapping: {plain!r}")
    return plain
