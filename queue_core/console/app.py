"""The console as an ASGI application: login, pages, streams of changed pages, and actions."""

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from queue_core.client.http.fleet_paths import FLEET, PRESENT_WORKERS, READS, SUPERVISORS
from queue_core.clock import Clock, SystemClock
from queue_core.console import guard
from queue_core.console.api import DOCUMENT, ApiProblemError, ConsoleApi
from queue_core.console.call import PageCall, PayloadRules, Viewer
from queue_core.console.cookies import cookie_of
from queue_core.console.forms import FormError, read_form
from queue_core.console.live import LivePages
from queue_core.console.logins import Logins, OneTimeLogins, OwnTokens
from queue_core.console.pages import ACTIONS, FILES, MENU, PAGES, ConsolePage, Give
from queue_core.console.rendering import FOLDER, rendered, rendered_in_slices
from queue_core.console.sessions import (
    PLAIN_COOKIE,
    SECURE_COOKIE,
    SESSION_SECONDS,
    EndedSessions,
    seconds_left,
    session_cookie,
    token_of_session,
)
from queue_core.console.shared import PageMemory, SharedApi
from queue_core.console.stream import PageStream
from queue_core.log import get_logger

log = get_logger()

PATH: Final = "/console"
LIVE: Final = "/live"
"""Where the streams of pages are, each at the page's own address below it."""
FLASH_COOKIE: Final = "towline_said"
PAGE_FAILED: Final = "page.failed"
"""A page of the console failed for an unexpected reason; the traceback is here."""
_STATUS_TITLES: Final = {401: "Log in", 403: "Not allowed", 404: "Not found", 503: "Unavailable"}


PersonFinder = Callable[[str, Sequence[tuple[bytes, bytes]]], str | None]
"""Returns the token of a person whom a trusted proxy has logged in, from its address and the headers; None: nobody."""


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """The options of a console.

    Args:
        tokens: returns those that people log in with; none: everybody may look who can reach the listener.
        writes: whether pages have buttons that change something; otherwise nothing can be changed by them.
        payloads: which payloads are shown.
        proxy: names people whom a proxy has logged in; None: nobody is.
    """

    tokens: Callable[[], Sequence[str]] = tuple
    writes: bool = False
    payloads: PayloadRules = field(default_factory=PayloadRules)
    proxy: PersonFinder | None = None


class Console:
    """The console. Lives in the server's loop."""

    def __init__(
        self, api: ConsoleApi, options: ConsoleOptions, *, clock: Clock | None = None, logins: Logins | None = None
    ) -> None:
        """`logins`: of a console over another server's API, which alone knows its tokens."""
        self._api = api
        self._options = options
        self._logins: Logins = logins or OwnTokens(options.tokens)
        self._one_time = OneTimeLogins()
        self._ended = EndedSessions()
        self._clock = clock or SystemClock()
        self._live = LivePages(self._clock.monotonic)
        self._shared = SharedApi(api, self._clock.monotonic)
        self._memory = PageMemory(self._clock.monotonic)
        self._paths: frozenset[str] = frozenset()
        self.app = Starlette(routes=self._routes(), exception_handlers={HTTPException: self._no_such_page})

    def end_sessions(self) -> None:
        """End all streams, as tokens have changed: some sessions are over, and others may see less."""
        self._live.end_streams()

    def stop(self) -> None:
        """End the streams, so that the server's stop is quick."""
        self._live.stop()

    def _routes(self) -> Sequence[Route | Mount]:
        routes: list[Route | Mount] = [
            Mount("/static", StaticFiles(directory=FOLDER / "static")),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
        ]
        for page in PAGES:
            methods = ["GET", "POST"] if page.max_form_bytes else ["GET"]
            routes.append(Route(page.path, self._page_view(page), methods=methods))
            if page.is_live:
                routes.append(Route(f"{LIVE}{page.path}", self._live_view(page), methods=["GET"]))
        for path, action in ACTIONS.items():
            routes.append(Route(path, self._action_view(action), methods=["POST"]))
        for path, give in FILES.items():
            routes.append(Route(path, self._file_view(give), methods=["GET"]))
        return routes

    # -- who looks --------------------------------------------------------------------------------------------------

    def login_address(self, token: str) -> str:
        """Return the address, below the console's, of a link that logs somebody in with a token, once."""
        return f"login?once={self._one_time.new(token, now_seconds=self._now())}"

    async def knows(self, token: str) -> bool:
        """Return whether people can log in with a token."""
        return await self._logins.accepted(token) is not None

    async def _viewer(self, request: Request) -> Viewer | None:
        """Return who looks; None: nobody has logged in yet."""
        if self._options.proxy is not None:
            address = request.client.host if request.client is not None else ""
            token = self._options.proxy(address, request.headers.raw)
            if token is not None:
                return Viewer(token, is_logged_in=False)
        for cookie in _sessions_in(request):
            token = self._token_of(cookie)
            if token is not None:
                return Viewer(token, is_logged_in=True)
        return Viewer(None, is_logged_in=False) if await self._logins.is_open() else None

    def _token_of(self, cookie: str) -> str | None:
        """Return the token of a session that goes on."""
        token = token_of_session(cookie, self._logins.tokens(), now_seconds=self._now())
        return None if token is None or self._ended.has(cookie) else token

    def _session_over(self, request: Request, viewer: Viewer) -> Callable[[], bool]:
        """Return what says whether the viewer's session has ended: logged out, or its token removed."""
        if not viewer.is_logged_in:
            return lambda: False
        cookies = _sessions_in(request)
        return lambda: all(self._token_of(cookie) != viewer.token for cookie in cookies)

    def _session_seconds(self, request: Request, viewer: Viewer) -> float:
        """Return how long the viewer's session lasts; where nobody logs in, for ever."""
        if not viewer.is_logged_in or viewer.token is None:
            return float("inf")
        cookies = _sessions_in(request)
        return max(seconds_left(cookie, viewer.token, now_seconds=self._now()) for cookie in cookies)

    def _now(self) -> float:
        return self._clock.now() / 1e6

    async def _login(self, request: Request) -> Response:
        once = request.query_params.get("once", "")
        if request.method == "GET" and once:
            return self._login_once(once, request)
        if request.method == "GET":
            return self._html("login.html", request, {"problem": "", "back": request.query_params.get("back", "")})
        problem = guard.refusal_of_write(request.headers)
        if problem:
            return self._problem(request, 403, problem)
        try:
            form = await read_form(request)
        except FormError as error:
            return self._problem(request, error.status, str(error))
        token = await self._logins.accepted(form.get("token", ""))
        if token is None:
            said = "Unknown token."
            return self._html("login.html", request, {"problem": said, "back": form.get("back", "")}, status=401)
        return self._logged_in(token, _own_address(form.get("back", ""), request), request)

    def _login_once(self, code: str, request: Request) -> Response:
        """Log in whoever has a one-time link."""
        token = self._one_time.take(code, now_seconds=self._now())
        if token is None:
            said = "This link was already used or is older than 5 minutes. Log in with a token."
            return self._html("login.html", request, {"problem": said, "back": ""}, status=401)
        return self._logged_in(token, _root(request), request)

    def _logged_in(self, token: str, address: str, request: Request) -> Response:
        response = RedirectResponse(address, status_code=303)
        is_secure = guard.is_secure_host(request.headers)
        response.set_cookie(
            SECURE_COOKIE if is_secure else PLAIN_COOKIE,
            session_cookie(token, name=secrets.token_urlsafe(9), now_seconds=self._now()),
            max_age=SESSION_SECONDS,
            path="/",
            secure=is_secure,
            httponly=True,
            samesite="strict",
        )
        return response

    async def _logout(self, request: Request) -> Response:
        problem = guard.refusal_of_write(request.headers)
        if problem:
            return self._problem(request, 403, problem)
        response = RedirectResponse("login", status_code=303)
        for cookie in _sessions_in(request):
            token = self._token_of(cookie)
            if token is not None:
                self._ended.end(cookie, token, now_seconds=self._now())
        for name in (SECURE_COOKIE, PLAIN_COOKIE):
            response.delete_cookie(name, path="/", secure=name == SECURE_COOKIE, httponly=True, samesite="strict")
        self._live.recheck_sessions()
        return response

    # -- pages ------------------------------------------------------------------------------------------------------

    def _page_view(self, page: ConsolePage) -> Callable[[Request], Awaitable[Response]]:
        async def view(request: Request) -> Response:
            viewer = await self._viewer(request)
            if viewer is None:
                return self._login_redirect(request)
            form: Mapping[str, str] = {}
            if request.method == "POST":
                problem = guard.refusal_of_write(request.headers)
                if problem:
                    return self._problem(request, 403, problem)
                try:
                    form = await read_form(request, parts_bytes=page.max_form_bytes)
                except FormError as error:
                    return self._problem(request, error.status, str(error))
            try:
                call = replace(await self._call(request, viewer), form=form)
                values = await page.load(call)
                said = unquote(cookie_of(request.headers, FLASH_COOKIE))
                shown = self._values(request, {"call": call, "page": page, "said": said, **values})
                html = await rendered_in_slices(page.template, shown)
            except ApiProblemError as error:
                return self._problem(request, error.status, error.detail)
            except Exception:
                log.exception(PAGE_FAILED, page=page.path)
                return self._problem(
                    request, 500, "This page failed to load; the server's log says why. Other pages still work."
                )
            response = HTMLResponse(html, headers=dict(guard.PAGE_HEADERS))
            if said:
                response.delete_cookie(FLASH_COOKIE, path="/", httponly=True, samesite="strict")
            return response

        return view

    def _live_view(self, page: ConsolePage) -> Callable[[Request], Awaitable[Response]]:
        """Return the stream of a page: what its `main` contains, whenever that has changed."""

        async def view(request: Request) -> Response:
            viewer = await self._viewer(request)
            if viewer is None:
                return self._problem(request, 401, "Log in again.")
            try:
                call = await self._call(request, viewer)
            except ApiProblemError as error:
                return self._problem(request, error.status, error.detail)
            self._shared.know_rights(viewer.token, call.rights)
            of_page = {"root": _root(request), "page": page, "is_part": True}

            async def render() -> str:
                fresh = call.at(self._now()).through(self._shared)
                return await rendered_in_slices(page.template, {**of_page, "call": fresh, **await page.load(fresh)})

            key = (call.rights, _root(request), request.url.path, request.url.query)
            seat = self._live.take_seat(key, render, viewer=viewer.token, is_admin=call.role == "admin")
            if seat is None:
                return self._problem(
                    request, 503, "This console has reached its limit of viewers. Try again in a minute."
                )
            seen = request.headers.get("last-event-id", "")
            is_over = self._session_over(request, viewer)
            return PageStream(seat, seen=seen, seconds=self._session_seconds(request, viewer), is_over=is_over)

        return view

    def _file_view(self, give: Give) -> Callable[[Request], Awaitable[Response]]:
        """Return a view that a browser keeps as a file and never opens as a page."""

        async def view(request: Request) -> Response:
            viewer = await self._viewer(request)
            if viewer is None:
                return self._login_redirect(request)
            try:
                name, data = await give(await self._call(request, viewer))
            except ApiProblemError as error:
                return self._problem(request, error.status, error.detail)
            headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
            return Response(data, headers={**guard.PAGE_HEADERS, **headers}, media_type="application/octet-stream")

        return view

    async def _call(self, request: Request, viewer: Viewer) -> PageCall:
        path = {name: str(value) for name, value in request.path_params.items()}
        query = request.query_params.multi_items()
        paths = await self._paths_of_api(viewer)
        options = self._options
        call = PageCall(
            self._api,
            viewer,
            path,
            query,
            self._now(),
            writes=options.writes,
            paths=paths,
            memory=self._memory,
            payloads=options.payloads,
        )
        return await call.introduced()

    async def _paths_of_api(self, viewer: Viewer) -> frozenset[str]:
        """Return the paths that the API has, with those that it passes on to a supervisor."""
        if not self._paths:
            reply = await self._api.call("GET", DOCUMENT, token=viewer.token)
            found = reply.body.get("paths")
            if not reply.is_done:  # a server that does not answer now is asked again
                return frozenset(found) if isinstance(found, dict) else frozenset()
            self._paths = frozenset(found) if isinstance(found, dict) else frozenset()
            if PRESENT_WORKERS in self._paths and FLEET not in self._paths:  # it passes these on (ADR 97)
                self._paths |= {SUPERVISORS, *READS}
        return self._paths

    # -- actions ----------------------------------------------------------------------------------------------------

    def _action_view(
        self, action: Callable[[PageCall, Mapping[str, str]], Awaitable[str]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def view(request: Request) -> Response:
            problem = guard.refusal_of_write(request.headers)
            if problem:
                return self._problem(request, 403, problem)
            viewer = await self._viewer(request)
            if viewer is None:
                return self._login_redirect(request)
            if not self._options.writes:
                said = "This console is read-only. Set `console: {writes: on}` in the settings file to change that."
                return self._problem(request, 403, said)
            self._shared.forget()
            try:
                form = await read_form(request)
                said = await action(await self._call(request, viewer), form)
            except FormError as error:
                return self._problem(request, error.status, str(error))
            except ApiProblemError as error:
                return self._problem(request, error.status, error.detail)
            response = RedirectResponse(_own_address(form.get("back", ""), request), status_code=303)
            response.set_cookie(
                FLASH_COOKIE, _cookie_text(said), max_age=30, path="/", httponly=True, samesite="strict"
            )
            return response

        return view

    # -- answers ----------------------------------------------------------------------------------------------------

    def _html(
        self, template: str, request: Request, values: Mapping[str, object], *, status: int = 200
    ) -> HTMLResponse:
        shown = self._values(request, {"of_template": template, **values})
        return HTMLResponse(rendered(template, shown), status, dict(guard.PAGE_HEADERS))

    def _values(self, request: Request, values: Mapping[str, object]) -> dict[str, object]:
        """Return the values of a whole page."""
        given: dict[str, object] = {"page": None, "call": None, "said": "", "of_template": "", **values}
        of_request = {"root": _root(request), "is_part": False, "now": self._now(), "live": _live_address(request)}
        return {**given, **of_request, "menu": _menu(given["call"])}

    def _login_redirect(self, request: Request) -> Response:
        back = f"{_page_path(request)}?{request.url.query}".strip("/?") if request.method == "GET" else ""
        query = f"?back={quote(back, safe='')}" if back else ""
        return RedirectResponse(f"{_root(request)}login{query}", status_code=303)

    async def _no_such_page(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 404
        said = "Page not found." if status == 404 else "This address does not accept that request."
        return self._problem(request, status, said)

    def _problem(self, request: Request, status: int, detail: str) -> Response:
        title = _STATUS_TITLES.get(status, "Request failed")
        return self._html("problem.html", request, {"title": title, "detail": detail, "status": status}, status=status)


def _sessions_in(request: Request) -> list[str]:
    """Return the cookies of sessions that a request has; anybody may have made them up."""
    found = (cookie_of(request.headers, name) for name in (SECURE_COOKIE, PLAIN_COOKIE))
    return [cookie for cookie in found if cookie]


def _page_path(request: Request) -> str:
    """Return the quoted path of a page below the console, also of one that is streamed: "/queues/mail"."""
    path = request.scope.get("raw_path", b"").decode("latin-1") or request.url.path
    below = path.removeprefix(PATH)
    return below.removeprefix(LIVE) if below.startswith(f"{LIVE}/") else below


def _root(request: Request) -> str:
    """Return the console's address relative to a page, so that links hold behind any proxy's prefix."""
    return "../" * (_page_path(request).count("/") - 1) or "./"


def _live_address(request: Request) -> str:
    """Return the address of a page's stream, relative to the page."""
    return f"{_root(request)}{LIVE[1:]}{_page_path(request)}?{request.url.query}"


def _menu(call: object) -> list[tuple[str, str, str]]:
    """Return the menu: section, name and address of each entry of which the API knows something."""
    paths = call.paths if isinstance(call, PageCall) else frozenset()
    return [(section, name, address) for section, name, address, needs in MENU if not needs or needs in paths]


def _own_address(back: str, request: Request) -> str:
    """Return where to go after a form: a page of this console, whatever the form says."""
    root = _root(request)
    path = back.partition("?")[0]
    is_own = back and not back.startswith(("/", "\\")) and "//" not in back and ":" not in path
    is_own = is_own and ".." not in unquote(path).replace("\\", "/").split("/")
    return f"{root}{back}" if is_own else root


def _cookie_text(text: str) -> str:
    return quote(text[:500], safe=" ")
