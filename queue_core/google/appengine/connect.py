"""`connect_appengine`: use App Engine's `google.appengine.api.taskqueue` with a Towline server.

A web application inside `google.appengine.api.wrap_wsgi_app` only needs environment variables; any other program calls
`connect_appengine` once. See `docs/from/appengine-python.md`.
"""

import os
import warnings
from collections.abc import Mapping, MutableMapping
from typing import Literal
from urllib.parse import urlsplit

from queue_core.errors import AppImportError, InvalidSettingError
from queue_core.verbs.validation import check_choice

DEFAULT_URL = "http://127.0.0.1:7878"
DEFAULT_TICKET = "towline"
"""A placeholder for servers without tokens, as the SDK requires a ticket."""
PACKAGE = "appengine-python-standard"

_last_address: tuple[str, str] | None = None
"""The host and port last put into the environment by `connect_appengine`."""


def connect_appengine(
    url: str | None = None, *, ticket: str | None = None, services: Literal["taskqueue", "all"] | None = None
) -> None:
    """Send calls of the App Engine SDK in this process to a Towline server.

    It works in all threads, including running ones, on every Python that the SDK supports, as it registers its own stub
    instead of patching threads. Call it again to change the server.

    In a process with an API host for other services (App Engine itself, `API_HOST`, a registered stub) only calls of
    `taskqueue` are redirected, and the environment is unchanged. Otherwise calls of every service are redirected, and
    the environment is set too (`API_HOST`, `API_PORT`, the ticket), so that `wrap_wsgi_app` uses the same server.

    Args:
        url: `http://host:port` or `https://host:port`; `TOWLINE_URL` by default, else `http://127.0.0.1:7878`. The
            first of several joined by commas.
        ticket: one of the server's tokens, sent as the ticket of App Engine's protocol; `TOWLINE_TOKEN` by default.
        services: redirect `taskqueue` only or `all`, regardless of other API hosts.

    Raises `AppImportError` when the SDK is not installed, `InvalidSettingError` for a URL that the SDK can't use.
    """
    if services is not None:
        check_choice("services", services, ("taskqueue", "all"))
    server = _server_url(url or os.environ.get("TOWLINE_URL") or DEFAULT_URL)
    secret = ticket or os.environ.get("TOWLINE_TOKEN") or DEFAULT_TICKET
    try:
        from queue_core.google.appengine.stub import has_other_host, register
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "queue_core":
            raise
        raise AppImportError(
            module="google.appengine", reason=f"no module {error.name}", hint=f"`pip install {PACKAGE}`"
        ) from error
    if os.environ.get("APPENGINE_USE_CLOUDTASK_PUSH_QUEUE", "").lower() == "true":
        warnings.warn(
            "APPENGINE_USE_CLOUDTASK_PUSH_QUEUE=true sends purge, fetch_statistics and delete_tasks_by_name of pull "
            "queues to Google Cloud Tasks: unset it",
            RuntimeWarning,
            stacklevel=2,
        )
    if services is None:
        services = "taskqueue" if names_other_host(os.environ, server) or has_other_host() else "all"
    if services == "all":
        set_environment(os.environ, server, secret)
    os.environ.setdefault("HTTP_HOST", "localhost")  # without one, every `Task` logs a warning
    register(server, secret, worker=os.environ.get("TOWLINE_WORKER", ""), services=services)


def names_other_host(environment: Mapping[str, str], url: str) -> bool:
    """Return whether the environment is App Engine's, or has an API host that `connect_appengine` did not set."""
    if "GAE_ENV" in environment:
        return True
    named = environment.get("API_HOST"), environment.get("API_PORT")
    return named[0] is not None and named not in (_address(url), _last_address)


def _address(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", str(parts.port or (443 if parts.scheme == "https" else 80))


def set_environment(environment: MutableMapping[str, str], url: str, ticket: str) -> None:
    """Set the variables that the SDK's own stub reads; it uses plain HTTP, whatever the scheme."""
    global _last_address  # noqa: PLW0603 - per process, as the environment is
    _last_address = environment["API_HOST"], environment["API_PORT"] = _address(url)
    environment["HTTP_X_APPENGINE_API_TICKET"] = ticket


def _server_url(given: str) -> str:
    """Return the first server of a URL. Raises `InvalidSettingError`."""
    url = given.split(",", maxsplit=1)[0].strip().rstrip("/")
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise InvalidSettingError(
            f"the App Engine SDK needs a server's http:// or https:// URL: {url.split('@')[-1][:100]!r}; "
            "run `towline serve --listen 127.0.0.1:7878`"
        )
    return url
