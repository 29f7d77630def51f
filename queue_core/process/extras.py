"""Extras: the parts of Towline whose packages are installed only where they are asked for."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from queue_core.errors import InvalidSettingError

PACKAGES: Final = {
    "django": ("django", "django_tasks"),
    "grpc": ("grpc", "google"),
    "otel": ("opentelemetry",),
    "postgres": ("psycopg", "psycopg_binary", "psycopg_c"),
    "redis": ("redis", "hiredis"),
}
"""The packages that can be imported where each extra is installed."""


@contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """Say how to install an extra where the block can't import a package of it.

    Raises `InvalidSettingError`; an import that fails for another reason raises its own error.
    """
    try:
        yield
    except ImportError as error:
        missing = _package_of(error)
        if missing not in PACKAGES[extra]:
            raise
        raise InvalidSettingError(f"{purpose} needs the package {missing}: {how_to_install(extra)}") from None


def extra_of(error: ImportError) -> str | None:
    """Return the extra whose package can't be imported; None for any other package."""
    missing = _package_of(error)
    return next((extra for extra, packages in PACKAGES.items() if missing in packages), None)


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'towline[{extra}]'"


def _package_of(error: ImportError) -> str:
    """Return the package that an import has not found; psycopg without its C library has not found that."""
    if error.name is None and "pq wrapper" in str(error):
        return "psycopg_binary"
    return (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
