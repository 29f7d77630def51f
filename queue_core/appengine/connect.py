"""App Engine's `google.appengine.api.taskqueue` on a Towline server, from any program and any thread.

A web application inside `google.appengine.api.wrap_wsgi_app` needs environment variables only; everything else needs
one call of `connect_appengine`. `doc/appengine-python.md` has the whole story.
"""

import os
import warnings
from collections.abc import Mapping, MutableMapping
from typing import Literal
from urllib.parse import urlsplit

from queue_core.errors import AppImportError, InvalidSettingError
from queue_core.validation import check_choice

DEFAULT_URL = "http://127.0.0.1:7878"
DEFAULT_TICKET = "towline"
"""Any text will do for a server without tokens; none at all will not do for the SDK."""
PACKAGE = "appengine-python-standard"

_last_address: tuple[str, str] | None = None
"""Host and port that were put into the environment here."""


def connect_appengine(
    url: str | None = None, *, ticket: str | None = None, services: Literal["taskqueue", "all"] | None = None
) -> None:
    """Send calls of the App Engine SDK in this process to a Towline server.

    Works in every thread, those that run already included, and on every release of Python that the SDK runs on: it
    registers a stub of its own instead of patching threads. Call it again to change the server.

    In a process that has an API host for the other services (App Engine itself, `API_HOST`, a stub that was registered)
    only the calls of `taskqueue` are taken, and the environment stays as it is. Where there is none, every service is
    taken, and the environment is set too (`API_HOST`, `API_PORT`, the ticket), so that `wrap_wsgi_app`, called before
    or after, finds the same server.

    Args:
        url: `http://host:port` or `https://host:port`; `TOWLINE_URL` by default, else `http://127.0.0.1:7878`. Of
            several, joined by commas, the first.
        ticket: a secret of the server's tokens, which App Engine's protocol carries as its ticket; `TOWLINE_TOKEN` by
            default. Anything where the server has no tokens.
        services: `taskqueue` alone or `all`, whatever the process has.

    Raises `AppImportError` when the SDK is not installed, `InvalidSettingError` for a URL that it can't use.
    """
    if services is not None:
        check_choice("services", services, ("taskqueue", "all"))
    server = _server_url(url or os.environ.get("TOWLINE_URL") or DEFAULT_URL)
    secret = ticket or os.environ.get("TOWLINE_TOKEN") or DEFAULT_TICKET
    try:
        from queue_core.appengine.stub import has_other_host, register
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
    """Whether the environment is one of App Engine, or names an API host that is neither this server nor one that
    `connect_appengine` has named before."""
    if "GAE_ENV" in environment:
        return True
    named = environment.get("API_HOST"), environment.get("API_PORT")
    return named[0] is not None and named not in (_address(url), _last_address)


def _address(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", str(parts.port or (443 if parts.scheme == "https" else 80))


def set_environment(environment: MutableMapping[str, str], url: str, ticket: str) -> None:
    """What the SDK's own stub reads; it speaks plain HTTP, whatever the scheme."""
    global _last_address  # noqa: PLW0603 - as the environment is, of the process
    _last_address = environment["API_HOST"], environment["API_PORT"] = _address(url)
    environment["HTTP_X_APPENGINE_API_TICKET"] = ticket


def _server_url(given: str) -> str:
    """The first server in it. Raises `InvalidSettingError`."""
    url = given.split(",", maxsplit=1)[0].strip().rstrip("/")
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise InvalidSettingError(
            f"the App Engine SDK needs a server's http:// or https:// URL: {url.split('@')[-1][:100]!r}; "
            "`towline serve --listen 127.0.0.1:7878` makes one"
        )
    return url
