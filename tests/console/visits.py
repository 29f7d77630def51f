"""A visitor of the console, as a browser without JavaScript: it keeps cookies, follows redirects and posts forms."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape
from http.client import HTTPConnection
from urllib.parse import urlencode, urljoin, urlsplit

SAME_ORIGIN = {"sec-fetch-site": "same-origin"}


@dataclass(frozen=True, slots=True)
class Shown:
    """A page: its status, its address below the server's, and its text without markup."""

    status: int
    path: str
    html: str
    headers: Mapping[str, str]

    @property
    def text(self) -> str:
        """The words of the page."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.html)).split())

    def form(self, action: str) -> dict[str, str]:
        """The hidden fields of the form that is sent to an address with this in it."""
        (found,) = re.findall(rf'<form [^>]*action="[^"]*{re.escape(action)}.*?</form>', self.html, re.DOTALL)
        fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', found)
        return {name: unescape(value) for name, value in fields}


@dataclass(slots=True)
class Visitor:
    """One visitor of one server."""

    port: int
    cookies: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    host: str = ""

    def get(self, path: str) -> Shown:
        """Look at a page below the console's address, and follow its redirects."""
        return self._follow("GET", f"/console/{path}", "")

    def post(self, path: str, fields: Mapping[str, str] | None = None, **headers: str) -> Shown:
        """Send a form from the console's own page."""
        return self._follow("POST", f"/console/{path}", urlencode(fields or {}), headers or SAME_ORIGIN)

    def _follow(self, method: str, path: str, body: str, headers: Mapping[str, str] | None = None) -> Shown:
        for _ in range(5):
            shown = self.once(method, path, body, headers)
            if shown.status not in (302, 303, 307):
                return shown
            method, body, path = "GET", "", urljoin(path, shown.headers["location"])
        raise AssertionError(f"{path} is redirected for ever")

    def once(self, method: str, path: str, body: str = "", headers: Mapping[str, str] | None = None) -> Shown:
        """Make one request."""
        sent = {**self.headers, **(headers or {}), "host": self.host or f"127.0.0.1:{self.port}"}
        if self.cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if body:
            sent.setdefault("content-type", "application/x-www-form-urlencoded")
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body or None, sent)
            answer = connection.getresponse()
            for name, value in answer.getheaders():
                if name.lower() == "set-cookie":
                    self._keep(value)
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Shown(answer.status, urlsplit(path).path, answer.read().decode(), found)
        finally:
            connection.close()

    def _keep(self, cookie: str) -> None:
        pair, _, attributes = cookie.partition(";")
        name, _, value = pair.partition("=")
        if "max-age=0" in attributes.lower():
            self.cookies.pop(name, None)
        else:
            self.cookies[name] = value.strip('"')
