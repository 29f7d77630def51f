"""Connect to a broker with kombu for looking only: short timeouts; nothing of the fleet's is declared or restored."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import unquote

import kombu

from orchestrator.base.errors import SourceUnavailableError
from queue_core.attempts.secret_forms import MASK, masked_text
from queue_core.config.store_urls import masked

CONNECT_SECONDS: Final = 3.0
SOCKET_SECONDS: Final = 5.0
_NEVER_SECONDS: Final = 10**9
_SENTENCE_CHARS: Final = 300


def connect(url: str, options: Mapping[str, object]) -> Any:
    """Return a connection to the broker, which is made when it is first used.

    A Redis connection of kombu that waits for messages also gives back those whose visibility has timed out, and by our
    options instead of the fleet's that would run tasks twice: so it is told never to.
    """
    settings = {**options}
    scheme = url.partition(":")[0].partition("+")[0]
    if scheme in ("redis", "rediss", "sentinel", "valkey", "valkeys"):
        settings |= {
            "visibility_timeout": _NEVER_SECONDS,
            "socket_timeout": SOCKET_SECONDS,
            "socket_connect_timeout": CONNECT_SECONDS,
        }
    elif scheme in ("amqp", "pyamqp", "amqps", "py-amqp"):
        settings |= {"read_timeout": SOCKET_SECONDS, "write_timeout": SOCKET_SECONDS}
    return kombu.Connection(url, connect_timeout=CONNECT_SECONDS, transport_options=settings, heartbeat=0)


def opened(connection: Any) -> Any:
    """Connect, without retries, and return the same connection."""
    connection.ensure_connection(
        max_retries=1, interval_start=0, interval_step=0, interval_max=0, timeout=CONNECT_SECONDS
    )
    cycle: Any = getattr(connection.transport, "cycle", None)
    if hasattr(cycle, "maybe_restore_messages"):
        cycle.maybe_restore_messages = _restore_nothing
    return connection


def _restore_nothing() -> None:
    """Leave the messages of the fleet's own workers where they are."""


def release(connection: Any) -> None:
    """Close a connection; one that is broken already is left as it is."""
    with suppress(Exception):  # a driver's, of whatever kind: the connection is given up in any case
        connection.release()


@contextmanager
def as_unavailable(what: str, url: str) -> Iterator[None]:
    """Turn every error of a driver into `SourceUnavailableError`, without the broker's password."""
    try:
        yield
    except SourceUnavailableError:
        raise
    except Exception as error:
        why = clean_error(error, url)
        raise SourceUnavailableError(f"can't {what} at {masked(url)}: {why}") from error


def clean_error(error: BaseException, url: str) -> str:
    """Return an error's text in one line, without the URL's password and without what moves a terminal's cursor."""
    text = str(error) or type(error).__name__
    for secret in _secrets_of(url):
        text = text.replace(secret, MASK)
    text = masked_text(text)
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line[:_SENTENCE_CHARS]


def _secrets_of(url: str) -> list[str]:
    authority = url.partition("://")[2].rpartition("@")[0]
    secret = authority.partition(":")[2]
    return [one for one in (secret, unquote(secret)) if one]
