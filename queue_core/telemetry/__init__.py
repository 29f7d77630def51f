"""Traces by OpenTelemetry: `instrument()` turns them on for this process. Imports nothing before that.

Needs the extra `otel`, which is OpenTelemetry's API only: the program brings its SDK and exporter.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from queue_core.errors import InvalidSettingError
from queue_core.process.extras import needs_extra
from queue_core.telemetry import instrumentation

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["instrument", "instrument_if_set", "uninstrument"]

SWITCH: Final = "TOWLINE_OTEL"
"""The environment variable by which a worker traces its handlers: `1` for yes, `0` or nothing for no."""


def instrument(tracer_provider: "TracerProvider | None" = None) -> None:
    """Trace adds and handlers of this process from now on; a second call replaces the first.

    Args:
        tracer_provider: the program's; None: the global one, also when it is set later.

    Raises `InvalidSettingError` when the package `opentelemetry-api` is missing.
    """
    with needs_extra("otel", "tracing"):
        from queue_core.telemetry.otel import Tracing
    instrumentation.active = Tracing(tracer_provider)


def instrument_if_set(environment: Mapping[str, str]) -> None:
    """Call `instrument` if the environment has `TOWLINE_OTEL=1`. Raises `InvalidSettingError`."""
    text = environment.get(SWITCH, "").strip()
    if text not in ("", "0", "1"):
        raise InvalidSettingError(f"{SWITCH} must be 1 or 0: {text[:100]!r}")
    if text == "1":
        instrument()


def uninstrument() -> None:
    """Trace nothing from now on."""
    instrumentation.active = None
