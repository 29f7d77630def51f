"""Requests to a console as a browser makes them, and as a browser never would."""

from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Final
from urllib.parse import urlencode, urlsplit

from queue_core.verbs.roles import Role
from tests.console.stage import TOKENS, ConsoleStage

OWN: Final[Mapping[str, str]] = {"sec-fetch-site": "same-origin"}
"""The header of a console's own form."""


@dataclass(frozen=True)
class Answer:
    """An answer: its status, headers by lower-case name, and text."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def cookie(self) -> str:
        """The first cookie that it sets, as `name=value`."""
        return self.headers.get("set-cookie", "").partition(";")[0]


def ask(
    stage: ConsoleStage,
    path: str,
    form: Mapping[str, str] | None = None,
    *,
    cookie: str = "",
    headers: Mapping[str, str] = OWN,
    method: str = "",
) -> Answer:
    """Ask for a page below the console, or send a form; no redirection is followed."""
    connection = HTTPConnection(urlsplit(stage.url).netloc, timeout=30)
    sent = {"cookie": cookie, **headers} if cookie else dict(headers)
    body = None if form is None else urlencode(form)
    if body is not None:
        sent["content-type"] = "application/x-www-form-urlencoded"
    try:
        connection.request(method or ("GET" if form is None else "POST"), f"/console/{path}", body, sent)
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)


def logged_in(stage: ConsoleStage, role: Role) -> str:
    """Log in, and return the session as `name=value`."""
    answer = ask(stage, "login", {"token": TOKENS[role]})
    assert answer.status == 303
    return answer.cookie
