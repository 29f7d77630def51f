"""Calls of commands to a supervisor elsewhere, by its API: `--url` in place of the settings file."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypedDict
from urllib.parse import quote, urlencode

import click
from pydantic_core import from_json

from orchestrator.base.json_fields import Json, mapping_of
from orchestrator.settings_file import DEFAULT_FILE
from queue_core.cli import exits
from queue_core.cli.credentials import bearer_token
from queue_core.cli.failure import CommandError
from queue_core.cli.options import Function, file_option, json_option, token_file_option
from queue_core.cli.target import check_scheme
from queue_core.client.http.caller import HttpCaller, Retries
from queue_core.client.http.problem_types import PREFIX
from queue_core.client.http.transport import HttpResponse
from queue_core.config.store_urls import masked
from queue_core.errors import QueueError

CALL_SECONDS: Final = 10.0
"""Timeout of one call: a person waits at a terminal."""
_CODES: Final[Mapping[int, tuple[int, str]]] = {
    401: (exits.NO_PERMISSION, "set TOWLINE_TOKEN, or give --token-file"),
    403: (exits.NO_PERMISSION, "use a token of such a role"),
    404: (exits.NO_INPUT, ""),
    422: (exits.BAD_DATA, ""),
    503: (exits.UNAVAILABLE, "try again; `towline health --url URL` says how it is"),
    507: (exits.CANT_CREATE, ""),
}
"""The exit code of a refused call and what to do next, by the answer's status."""


_NO_SUPERVISOR: Final = frozenset(f"{PREFIX}{kind}" for kind in ("unknown-path", "wrong-method", "no-supervisor"))
"""The problems of a server that no supervisor is known to, or of an older one."""


class SupervisorOptions(TypedDict):
    """The options of `supervisor_options`."""

    url: str | None
    token_file: Path | None
    file: Path | None


def supervisor_options(function: Function) -> Function:
    """Add the options that name a supervisor: `--url` and `--token-file`, or `-f`; and `--json`."""
    function = token_file_option(json_option(file_option(function)))
    return click.option("--url", help="A supervisor elsewhere: the URL of its `towline up`, or of supervisor.listen.")(
        function
    )


class UnknownNameError(CommandError):
    """The supervisor knows no pool, worker or host of this name."""


class NoSupervisorError(CommandError):
    """The server at this URL has no supervisor."""


class SupervisorCalls:
    """The API of one supervisor. Raises `CommandError` for whatever is refused or does not answer."""

    def __init__(self, url: str, *, token: str | None) -> None:
        self.url = url
        self.shown = masked(url)
        retries = Retries(tries=1, timeouts=1)
        self._caller = HttpCaller(url, token=token, retries=retries, timeout_seconds=CALL_SECONDS)

    def get(self, *names: str, **query: object) -> Json:
        """Return the answer at `/v1/NAME/NAME...`; parameters that are None are left out."""
        asked = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
        asked = {name: value for name, value in asked.items() if value is not None}
        return self._call("GET", _path(names) + (f"?{urlencode(asked)}" if asked else ""), None)

    def post(self, *names: str, body: Mapping[str, object]) -> Json:
        """Send an order to `/v1/NAME/NAME...`, once: one that comes late would undo what was ordered since."""
        return self._call("POST", _path(names), dict(body))

    def close(self) -> None:
        """Close the connections."""
        self._caller.close()

    def _call(self, method: str, path: str, body: Json | None) -> Json:
        try:
            answer = self._caller.request(method, path, body, repeat="safe" if method == "GET" else "once")
        except QueueError as error:
            message = f"the supervisor does not answer: {error}"
            raise CommandError(message, code=exits.UNAVAILABLE, where=self.shown, fix="is it running?") from None
        if answer.status < 400:
            return mapping_of(from_json(answer.body))
        raise self._refusal(answer)

    def _refusal(self, answer: HttpResponse) -> CommandError:
        try:
            problem = mapping_of(from_json(answer.body))
        except ValueError:  # no server of ours
            problem = {}
        kind, detail = str(problem.get("type") or ""), str(problem.get("detail") or "")
        if kind == f"{PREFIX}supervisor-elsewhere":
            url = str(problem.get("url") or "")
            fix = f"--url {url}" if url else "give the URL of a `towline up`, or of supervisor.listen"
            return NoSupervisorError(detail, code=exits.UNAVAILABLE, where=self.shown, fix=fix)
        if answer.status in {404, 405} and (not detail or kind in _NO_SUPERVISOR):
            return NoSupervisorError(
                "this server has no supervisor, or an older one",
                code=exits.UNAVAILABLE,
                where=self.shown,
                fix="give the URL of a `towline up`, or of supervisor.listen; or -f with its settings file",
            )
        code, fix = _CODES.get(answer.status, (exits.UNAVAILABLE, ""))
        detail = detail or f"the server answered {answer.status}"
        failure = UnknownNameError if answer.status == 404 else CommandError
        return failure(detail, code=code, where=self.shown, fix=fix)


def supervisor_url(url: str | None, file: Path | None) -> str | None:
    """Return the URL of the supervisor that a command means; None: that of the settings file, on this host."""
    origin = "--url"
    if url is None and file is None and not Path(DEFAULT_FILE).is_file():
        url, origin = os.environ.get("TOWLINE_URL"), "TOWLINE_URL"
    if url is not None:
        check_scheme(url, origin=origin, meant="server")
    return url


@contextmanager
def supervisor_at(url: str, token_file: Path | None) -> Iterator[SupervisorCalls]:
    """Call the supervisor at a URL."""
    calls = SupervisorCalls(url, token=bearer_token(token_file))
    try:
        yield calls
    finally:
        calls.close()


def _path(names: tuple[str, ...]) -> str:
    return "/v1/" + "/".join(quote(name, safe="") for name in names)
