"""The logger of both packages. It says nothing until the program asks: by structlog, or by the standard `logging`.

A program that has configured structlog gets each event with its fields; commands of ours do. Any other gets lines of
text from the logger `towline` of the standard library, which has no handler of its own.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final, cast

# Without rich, which would only colour tracebacks, structlog imports in half the time, in every worker.
sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
import structlog  # noqa: E402

if not sys.modules["rich"]:
    del sys.modules["rich"]

LOGGER: Final = "towline"
"""The name of the standard library's logger."""


def get_logger() -> structlog.typing.FilteringBoundLogger:
    """Return the logger of a module. It may be made before the program configures one."""
    return cast("structlog.typing.FilteringBoundLogger", _EitherLogger())


def _line(
    _logger: object, _method: str, entry: MutableMapping[str, Any]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Render an entry as the arguments of the standard library's logger."""
    error = entry.pop("exc_info", None)
    event = entry.pop("event", "")
    line = " ".join([str(event), *(f"{name}={value!r}" for name, value in entry.items())])
    return (line,), {"exc_info": error} if error else {}


def _standard_logger() -> structlog.typing.FilteringBoundLogger:
    logger = logging.getLogger(LOGGER)
    logger.addHandler(logging.NullHandler())  # else warnings would go to stderr, unasked
    wrapped: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        logger,
        processors=[structlog.stdlib.filter_by_level, structlog.contextvars.merge_contextvars, _line],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return wrapped


_STANDARD: Final = _standard_logger()


class _EitherLogger:
    """Logs by structlog where the program has configured it, else by the standard library."""

    __slots__ = ("_configured",)

    def __init__(self) -> None:
        self._configured = structlog.get_logger()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._configured if structlog.is_configured() else _STANDARD, name)
